"""A form takes the scopes that REST asks for the same, whether a browser sends it or a program with a token."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlencode

import forged_login
import pytest
from forged_login import Site, plain, running
from tornado.httpclient import HTTPResponse

from carme_hub.accounting.requests import Requests
from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.services.quotas.pages.routes import PAGES
from carme_hub.services.quotas.rest.base import ROOT
from carme_hub.services.quotas.rest.operations import ROUTES
from carme_hub.services.quotas.scopes import GRANT, MANAGE, POLICY, READ, READ_ALL

#: Addresses that take a form, and what does the same in REST.
TWINS = {
    "requests": ("POST", "requests"),
    "requests/{id}": ("POST", "requests/{id}/decision"),
    "accounts/teaching/transfers": ("POST", "transfers"),
    "accounts/teaching/corrections": ("POST", "corrections"),
    "accounts/teaching/grants": ("POST", "grants"),
    "administration/anomalies/1": ("POST", "anomalies/{id}/decision"),
    "administration/reconcile": ("POST", "reconciliation"),
    "administration/policy/try": ("POST", "replay"),
    "administration/policy/switch": ("PUT", "policy"),
}
MOVE = {"target": "physics", "hours": "5", "reason": "x", "key": "k1", "confirmed": "yes"}


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    async with running(tmp_path, monkeypatch) as found:
        await found.ledger.grant("teaching", 20 * GPU_HOUR, key="first", actor="root")
        yield found


async def send(site: Site, path: str, **fields: str) -> HTTPResponse:
    """Send a form as a program does that has a token of tina, who owns the account teaching."""
    sent = {"Authorization": "token tina", "Content-Type": "application/x-www-form-urlencoded"}
    return await site.ask(path, "POST", urlencode(fields), sent)


async def test_a_token_that_was_given_for_reading_changes_nothing_by_a_form(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await Requests(site.ledger).ask("teaching", "alice", GPU_HOUR, "the thesis", key="1")
    monkeypatch.setitem(forged_login.SCOPES, "tina", (READ,))
    for path, form in (
        ("accounts/teaching/transfers", MOVE),
        (f"requests/{one.id}", {"decision": "deny", "confirmed": "yes"}),
        ("requests", {"account": "teaching", "hours": "1", "reason": "x", "key": "k2"}),
    ):
        answer = await send(site, path, **form)
        assert (answer.code, MANAGE in plain(answer)) == (403, True), (path, plain(answer))
    assert (await site.ledger.balances(["teaching"]))["teaching"].left == 20 * GPU_HOUR
    assert [(each.id, each.state) for each in await Requests(site.ledger).all()] == [(one.id, "open")]
    monkeypatch.setitem(forged_login.SCOPES, "tina", (READ, MANAGE))
    assert (await send(site, "accounts/teaching/transfers", **MOVE)).code == 303


@pytest.mark.parametrize("scope", [READ, READ_ALL, MANAGE, GRANT, POLICY])
async def test_a_scope_opens_a_form_where_it_opens_the_same_in_rest(
    site: Site, monkeypatch: pytest.MonkeyPatch, scope: str
) -> None:
    one = await Requests(site.ledger).ask("teaching", "alice", GPU_HOUR, "the thesis", key="1")
    monkeypatch.setitem(forged_login.SCOPES, "tina", (READ, scope))
    operations = {(each.operation.method, each.operation.path): each.operation for each in ROUTES}
    for path, (method, twin) in TWINS.items():
        answer = await send(site, path.format(id=one.id))  # the empty form is refused by who may send it at all
        may = scope in operations[method, ROOT + twin].scopes
        assert answer.code == (409 if may else 403), (path, plain(answer))


def test_every_form_has_its_twin_here() -> None:
    forms = {pattern for pattern, handler in PAGES if "post" in vars(handler)}
    known = [path.format(id="0123456789abcdef") for path in TWINS]
    assert {pattern for pattern in forms if any(re.fullmatch(pattern, path) for path in known)} == forms
