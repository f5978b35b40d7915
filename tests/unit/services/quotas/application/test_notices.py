"""People are told once when GPU time runs out or expires: on pages, by webhook, by mail; nothing depends on it."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from carme_hub.accounting.ledger import Ledger
from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.domain.quotas.policy import Policy, parse_policy
from carme_hub.domain.quotas.rules import Person, QuotaRequest
from carme_hub.services.hub_users import HubUsers
from carme_hub.services.quotas.application.notices import Notices
from carme_hub.store.engine import CarmeStore
from carme_hub.store.ledger.idempotency import SentNotice
from carme_hub.store.ledger.writes import LedgerStore

NOW = 1_795_000_000.0
DAY = 86_400


class BookOfTwo:
    """alice and bob may charge physics."""

    known = True

    def accounts_of(self, user: str) -> tuple[str, ...]:
        return ("physics",) if user in ("alice", "bob") else ()

    def users_of(self, account: str) -> tuple[str, ...]:
        return ("alice", "bob") if account == "physics" else ()

    def coordinates(self, _user: str) -> tuple[str, ...]:
        return ()


class Receiver(HTTPServer):
    """Takes what a webhook sends."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Takes)
        self.got: list[dict[str, Any]] = []


class _Takes(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        self.server.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def ledger_of(tmp_path: Path, *quotas: dict[str, object], clock: Callable[[], float] = lambda: NOW) -> Ledger:
    policy: Policy = parse_policy({"quotas": list(quotas)})
    store = LedgerStore(CarmeStore(url=f"sqlite:///{tmp_path}/carme.sqlite").open())
    return Ledger(store, "lab", policy=lambda: policy, factor=lambda *_: 1000, clock=clock)


def notices_of(ledger: Ledger, **settings: object) -> Notices:
    log = logging.getLogger("test")
    book: Any = BookOfTwo()
    return Notices(CarmeQuotas(**settings), ledger, book, HubUsers(log), log)


async def hold(ledger: Ledger, session: str, hours: int) -> None:
    ask = QuotaRequest("physics", Gpus("a100", 1), hours * 3600)
    assert (await ledger.admit(session, Person("alice"), ask)).granted


async def test_each_mark_is_told_once_and_survives_a_restart(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, {"id": "week", "user": "*", "gpu_time": 100, "window": "week"})
    notices = notices_of(ledger)
    await hold(ledger, "s1", 70)
    assert await notices.notify_about(["alice", "bob"]) == []
    await hold(ledger, "s2", 10)
    [first] = await notices.notify_about(["alice", "bob"])
    assert (first.user, first.level) == ("alice", "warning")
    assert "75 %" in first.text
    assert await notices.notify_about(["alice"]) == []
    assert await notices_of(ledger).notify_about(["alice"]) == []
    await hold(ledger, "s3", 20)
    [last] = await notices.notify_about(["alice"])
    assert last.level == "danger"
    assert [shown["text"] for shown in await notices.open_for("alice")] == [last.text]
    assert await notices.open_for("bob") == []


async def test_a_notice_is_not_sent_again_however_many_came_after_it(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, {"id": "week", "user": "*", "gpu_time": 100, "window": "week"})
    await hold(ledger, "s1", 80)
    assert len(await notices_of(ledger).notify_about(["alice"])) == 1
    with ledger.context.store.transaction("lab") as writes:
        writes.add_notices([(SentNotice(f"something {n}", "bob", "warning", "x", NOW), ()) for n in range(1500)])
    assert await notices_of(ledger).notify_about(["alice"]) == []


async def test_use_that_comes_back_below_a_mark_is_no_news(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, {"id": "week", "user": "*", "gpu_time": 100, "window": "week"})
    await hold(ledger, "s1", 80)
    await hold(ledger, "s2", 15)
    [told] = await notices_of(ledger).notify_about(["alice"])
    assert "90 %" in told.text
    assert await ledger.release("s2", "stopped early")
    assert await notices_of(ledger).notify_about(["alice"]) == []


async def test_a_page_shows_what_was_told_as_long_as_it_is_so(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, {"id": "needs", "account": "physics", "needs_grant": True})
    notices = notices_of(ledger)
    await ledger.grant("physics", 2 * GPU_HOUR, key="k1", actor="ada")
    await hold(ledger, "s1", 2)
    await notices.notify_about(["alice"])
    [shown] = await notices.open_for("alice")
    assert shown["text"] == "Account physics has used or holds 100 % of what it was granted: 0 of 2 GPU-hours are left."
    await ledger.release("s1", "stopped early")
    assert await notices.open_for("alice") == []
    await hold(ledger, "s2", 2)
    assert len(await notices.open_for("alice")) == 1
    await ledger.grant("physics", 10 * GPU_HOUR, key="k2", actor="ada")
    assert await notices.open_for("alice") == []


async def test_a_new_window_is_told_of_anew(tmp_path: Path) -> None:
    now = [NOW]
    ledger = ledger_of(tmp_path, {"id": "day", "user": "*", "gpu_time": 10, "window": "day"}, clock=lambda: now[0])
    await hold(ledger, "s1", 9)
    assert len(await notices_of(ledger).notify_about(["alice"])) == 1
    now[0] += 2 * DAY  # what is held counts in each day
    assert len(await notices_of(ledger).notify_about(["alice"])) == 1


async def test_two_services_tell_a_thing_once(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, {"id": "week", "user": "*", "gpu_time": 100, "window": "week"})
    await hold(ledger, "s1", 80)
    one, two = notices_of(ledger), notices_of(ledger)
    told = await asyncio.gather(one.notify_about(["alice"]), two.notify_about(["alice"]))
    assert sorted(map(len, told)) == [0, 1]
    await one.notify_about(["alice"])
    assert await one.open_for("alice") == await two.open_for("alice") != []


async def test_an_account_that_runs_out_and_a_credit_that_expires_are_told_to_who_may_charge_it(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, {"id": "grants", "account": "*", "needs_grant": True})
    await ledger.grant("physics", 10 * GPU_HOUR, key="g1", actor="ada", reason="term")
    await ledger.grant("physics", GPU_HOUR, key="g2", actor="ada", reason="sorry", expires=NOW + 2 * DAY)
    await ledger.grant("physics", GPU_HOUR, key="g3", actor="ada", reason="later", expires=NOW + 9 * DAY)
    await hold(ledger, "s1", 11)
    told = await notices_of(ledger).notify_about(["alice", "eve"])
    assert {notice.user for notice in told} == {"alice", "bob"}
    texts = sorted(notice.text for notice in told if notice.user == "bob")
    assert len(texts) == 2
    assert "A credit of 1 GPU-hour of physics expires" in texts[0]
    assert "physics has used or holds 90 %" in texts[1]


async def test_a_webhook_gets_each_notice_and_a_dead_one_stops_nothing(tmp_path: Path, receiver: Receiver) -> None:
    ledger = ledger_of(tmp_path, {"id": "week", "user": "*", "gpu_time": 10, "window": "week"})
    secret = tmp_path / "webhook"
    secret.write_text(f"http://127.0.0.1:{receiver.server_port}/hook\n")
    secret.chmod(0o600)
    notices = notices_of(ledger, webhook_url_file=str(secret))
    await hold(ledger, "s1", 8)
    await notices.notify_about(["alice"])
    await notices.wait_until_delivered()
    assert [(got["user"], got["level"], got["link"]) for got in receiver.got] == [("alice", "warning", "")]
    secret.chmod(0o644)  # an address that others can read is not used
    await hold(ledger, "s2", 2)
    assert len(await notices.notify_about(["alice"])) == 1
    await notices.wait_until_delivered()
    assert len(receiver.got) == 1


async def test_a_rolling_window_says_the_same_once_and_not_every_minute(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, {"id": "days", "user": "*", "gpu_time": 10, "window": "rolling", "days": 7})
    notices = notices_of(ledger)
    await hold(ledger, "s1", 8)
    assert len(await notices.notify_about(["alice"])) == 1
    clock = ledger.context.clock
    object.__setattr__(ledger.context, "clock", lambda: clock() + 60)
    assert await notices.notify_about(["alice"]) == []
