"""The console: who may see and do what, that a GET changes nothing, and that each act is recorded."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jupyterhub.handlers
import pytest
from forged_hub import Browser, ForgedHub, forged_hub
from jupyterhub import orm
from test_home_sessions import ID, Part, SpawnerWithSession, session
from traitlets.config import Config

from carme_hub.administration.administration import Administration
from carme_hub.domain.administration import scopes
from carme_hub.domain.administration.acts import Act, Actor
from carme_hub.domain.administration.messages import Kind
from carme_hub.domain.cluster.jobs import Job, Phase, Snapshot
from carme_hub.domain.cluster.resources import Gpus, Node
from carme_hub.domain.sessions.session import Request
from carme_hub.errors import SlurmRejected
from carme_hub.spawners.handlers import companions, own_session
from carme_hub.spawners.handlers.console import accounts, base, rest, seen
from carme_hub.spawners.handlers.home import news, page, sessions
from carme_hub.spawners.handlers.pages import install_handlers, templates_path
from carme_hub.store.administration.store import AdministrationStore
from carme_hub.store.engine import CarmeStore

ROOT = "/hub/carme/console"
API = "/hub/api/carme/console"
EVIL = "<script>alert(1)</script>"


class NodesThatObey:
    """scontrol: what it was told, or a refusal."""

    def __init__(self) -> None:
        self.told: list[tuple[str, ...]] = []
        self.refusal = ""

    async def drain(self, name: str, reason: str) -> None:
        self._take("drain", name, reason)

    async def resume(self, name: str) -> None:
        self._take("resume", name)

    def _take(self, *words: str) -> None:
        if self.refusal:
            raise SlurmRejected(self.refusal)
        self.told.append(words)


class Site(Part):
    """The hub's context with administration, whose Slurm and reconciler are forged."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.log = logging.getLogger("test")
        self.cancelled: list[tuple[str, str]] = []
        self.control = NodesThatObey()
        self.reported: list[Act] = []
        store = AdministrationStore(CarmeStore(url=f"sqlite:///{folder}/carme.sqlite").open(), "lab")
        self.administration = Administration(store, self.reported.append, lambda _at: "18:00")
        self.settings = SimpleNamespace(
            node_control=lambda _client: self.control, commands=lambda: None, submit_again=True
        )
        self.client = None
        self.reconciler = SimpleNamespace(cancel=self._cancel)
        self.nodes = (Node("n1", "mixed", True, ("gpu",)),)
        self.watcher.nodes = self._nodes
        self.associations = SimpleNamespace(
            coordinates=lambda user: ("physics",) if user == "olga" else (),
            accounts=lambda: ("chemistry", "physics"),
            accounts_of=lambda _user: ("physics",),
            users_of=lambda _account: ("alice", "zoe"),
            refresh=self._refresh,
        )
        self.use = SimpleNamespace(ended_of_account=lambda *_: [], since=lambda _at: {})
        self.registry.ended = self._ended

    async def _cancel(self, id: str, why: str) -> None:
        self.cancelled.append((id, why))

    async def _nodes(self, _age: float) -> tuple[Node, ...]:
        return self.nodes

    async def _refresh(self) -> bool:
        return True

    async def _ended(self, _ids: Any) -> list[Any]:
        return []


@pytest.fixture(scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ForgedHub]:
    before = list(jupyterhub.handlers.default_handlers)
    install_handlers()
    config = Config()
    config.JupyterHub.custom_scopes = scopes.SCOPES
    config.JupyterHub.extra_user_scopes = {scopes.ACCOUNTS_READ}
    config.JupyterHub.load_roles = [
        {"name": "console-admin", "scopes": [scopes.OPERATE, "delete:servers", "list:users"], "users": ["ada"]},
        {"name": "console-writer", "scopes": [scopes.MESSAGE], "users": ["tina"]},
    ]
    try:
        folder = str(tmp_path_factory.mktemp("hub"))
        kind = {"template_paths": [templates_path()]}
        async with forged_hub(folder, SpawnerWithSession, config, **kind) as found:
            yield found
    finally:
        jupyterhub.handlers.default_handlers[:] = before


@pytest.fixture
async def site(hub: ForgedHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Site:
    found = Site(tmp_path)
    for name in ("carme_sessions", "carme_home_streams", "carme_recent_use"):
        hub.app.tornado_application.settings.pop(name, None)
    monkeypatch.setattr(SpawnerWithSession, "part", found)
    for module in (page, sessions, news, companions, own_session, base, rest, seen, accounts):
        if hasattr(module, "started_hub"):
            monkeypatch.setattr(module, "started_hub", lambda: found)
    monkeypatch.setattr(sessions, "LOOK", 0.05)
    found.open = [session()]
    own = Job(12, session().job_name, "alice", "RUNNING", Phase.ACTIVE, nodes=("n1",), start=1.0, time_limit=60)
    other = Job(13, "train", "zoe", "RUNNING", Phase.ACTIVE, nodes=("n1",), gpus=Gpus("a100", 1))
    found.watcher.latest = Snapshot(0, 0, {12: own, 13: other})
    return found


async def api(browser: Browser, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    headers = {"X-XSRFToken": browser.xsrf, "Sec-Fetch-Mode": "cors", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body)
    status, text, _ = await browser.ask(method, f"{API}/{path}", headers=headers, data=data)
    return status, json.loads(text)


def plain(text: str) -> str:
    return " ".join(text.split())


TABS = ("", "/jobs", "/nodes", "/messages", "/starts", "/acts")
FORMS = ("stop", "message", "announce", "withdraw", "drain", "resume", "stop-starts", "allow-starts")


async def test_without_a_scope_there_is_no_console(hub: ForgedHub, site: Site) -> None:
    alice, nobody = await hub.browser("alice"), await hub.browser()
    for path in (*(f"{ROOT}{tab}" for tab in TABS), *(f"{ROOT}/{form}" for form in FORMS)):
        assert (await alice.get(path))[0] == 403, path
        assert (await nobody.get(path))[0] == 302, path
    for form in FORMS:
        assert (await alice.post(f"{ROOT}/{form}", {"reason": "x"}))[0] == 403, form
    for path in ("sessions", "jobs", "nodes", "messages", "start-stops", "acts"):
        assert (await api(alice, "GET", path))[0] == 403, path
    for path in (
        "messages",
        "announcements",
        "start-stops",
        f"sessions/{ID}/stop",
        "nodes/n1/drain",
        "nodes/n1/updates",
    ):
        assert (await api(alice, "POST", path, {"reason": "x"}))[0] == 403, path
    assert "Console" not in (await alice.get("/hub/home"))[1]
    assert (site.administration.store.acts(9)[1], site.cancelled, site.control.told) == (0, [], [])


async def test_who_may_write_may_not_stop_nor_drain(hub: ForgedHub, site: Site) -> None:
    tina = await hub.browser("tina")
    assert (await tina.get(ROOT))[0] == 200
    assert (await tina.get(f"{ROOT}/message"))[0] == 200
    for form in ("drain", "resume", "stop-starts", "allow-starts"):
        assert (await tina.post(f"{ROOT}/{form}", {"reason": "x", "node": "n1"}))[0] == 403, form
    assert (await api(tina, "POST", "start-stops", {"reason": "x"}))[0] == 403
    _, text, _ = await tina.post(f"{ROOT}/stop", {"session": ID, "reason": "x"})
    assert "You may not stop servers of this user." in text
    assert (await api(tina, "POST", f"sessions/{ID}/stop", {"reason": "x"}))[0] in (403, 404)
    assert (site.cancelled, site.control.told, site.administration.stops()) == ([], [], [])


async def test_the_lists_show_everybodys_sessions_jobs_and_nodes(hub: ForgedHub, site: Site) -> None:
    ada = await hub.browser("ada")
    _, text, _ = await ada.get(ROOT)
    assert "alice" in text
    assert "1 session." in text
    assert "zoe" not in text
    _, text, _ = await ada.get(f"{ROOT}?user=bob")
    assert "0 of 1 sessions." in text
    _, text, _ = await ada.get(f"{ROOT}/jobs?node=n1&sort=user")
    assert "13 train" in text
    assert 'aria-sort="ascending"' in text
    _, text, _ = await ada.get(f"{ROOT}/nodes")
    assert f"{ROOT}/drain?node=n1" in text
    assert (await api(ada, "GET", "jobs?user=zoe"))[1]["jobs"][0]["id"] == 13
    assert (await api(ada, "GET", "sessions"))[1]["sessions"][0]["user"] == "alice"
    assert (await api(ada, "GET", "nodes"))[1]["count"] == 1


async def test_a_nodes_reason_is_shown_in_words_and_what_an_update_did_is_recorded(hub: ForgedHub, site: Site) -> None:
    ada, tina = await hub.browser("ada"), await hub.browser("tina")
    site.nodes = (
        Node("n1", "idle", False, flags=frozenset({"drain"}), reason="carme-health: 1 of 4 GPUs is lost"),
        Node("n2", "idle", True),
    )
    assert "Health check: 1 of 4 GPUs is lost" in (await ada.get(f"{ROOT}/nodes"))[1]
    [row] = (await api(ada, "GET", "nodes?id=n1"))[1]["nodes"]
    assert (row["id"], row["reason"]) == ("n1", "Health check: 1 of 4 GPUs is lost")
    body = {"reason": "Kernel", "did": "Started: ssh n1 update"}
    assert (await api(tina, "POST", "nodes/n1/updates", body))[0] == 403
    assert (await api(ada, "POST", "nodes/n1/updates", body))[0] == 201
    assert (await api(ada, "POST", "nodes/n1/updates", {**body, "outcome": "it ended with 3"}))[0] == 201
    assert (await api(ada, "POST", "nodes/n[1-2]/updates", body))[0] == 400
    found, _ = site.administration.store.acts(9)
    assert [(act.action, act.target, act.outcome) for act in found] == [
        ("update-node", "n1", "it ended with 3"),
        ("update-node", "n1", "done"),
    ]
    assert site.reported == [*reversed([replace(act, id=0) for act in found])]


async def test_a_get_or_a_form_without_its_token_changes_nothing(hub: ForgedHub, site: Site) -> None:
    ada = await hub.browser("ada")
    await ada.get(f"{ROOT}/drain?node=n1&reason=Fan")
    await ada.get(f"{ROOT}/stop?session={ID}&reason=Fan")
    await ada.get(f"{ROOT}/stop-starts?reason=Fan")
    for form in FORMS:
        ada.xsrf = "wrong"  # the page of a refusal has the right one
        assert (await ada.post(f"{ROOT}/{form}", {"reason": "x", "node": "n1", "session": ID}))[0] == 403
    assert (site.cancelled, site.control.told, site.administration.stops(), site.reported) == ([], [], [], [])


async def test_a_session_is_stopped_with_a_reason_that_its_user_reads(hub: ForgedHub, site: Site) -> None:
    ada = await hub.browser("ada")
    _, text, _ = await ada.get(f"{ROOT}/stop?session={ID}")
    assert "alice on node7: profile gpu, 1 × a100." in plain(text)
    status, text, _ = await ada.post(f"{ROOT}/stop", {"session": ID, "reason": ""})
    assert (status, site.cancelled) == (400, [])
    assert "Say why" in text
    _, text, _ = await ada.post(f"{ROOT}/stop", {"session": ID, "reason": "The fan fails"})
    assert "It is being stopped." in text
    assert site.cancelled == [(ID, "Stopped by an administrator: The fan fails")]
    assert [(each.action, each.target, each.actor.name, each.details["user"]) for each in site.reported] == [
        ("stop-session", ID, "ada", "alice")
    ]
    assert (await api(ada, "POST", f"sessions/{ID}/stop", {"reason": "Again"}))[0] == 202
    assert (await api(ada, "POST", f"sessions/{ID[:-1]}9/stop", {"reason": "Again"}))[0] == 404


async def test_a_node_is_drained_after_a_list_of_who_is_on_it_and_resumed(hub: ForgedHub, site: Site) -> None:
    ada = await hub.browser("ada")
    _, text, _ = await ada.get(f"{ROOT}/drain?node=n1")
    assert "alice on node7" in plain(text)
    assert "zoe: job 13 train." in text
    await ada.post(f"{ROOT}/drain", {"node": "n1", "reason": "The fan fails"})
    assert (await api(ada, "POST", "nodes/n1/resume", {"reason": "A new fan"}))[0] == 200
    assert site.control.told == [("drain", "n1", "The fan fails (ada)"), ("resume", "n1")]
    _, text, _ = await ada.get(f"{ROOT}/acts")
    for words in ("drain-node", "resume-node", "The fan fails", "A new fan", "users: alice, zoe"):
        assert words in text, words
    _, found = await api(ada, "GET", "acts?action=drain-node")
    assert [(each["actor"], each["door"], each["outcome"]) for each in found["acts"]] == [("ada", "page", "done")]


async def test_where_slurm_gives_the_hub_no_right_the_page_says_what_to_do(hub: ForgedHub, site: Site) -> None:
    ada = await hub.browser("ada")
    site.control.refusal = "Slurm does not let the hub change nodes: Invalid user id."
    status, text, _ = await ada.post(f"{ROOT}/drain", {"node": "n1", "reason": "Fan"})
    assert status == 503
    assert "Slurm does not let the hub change nodes" in text
    assert 'value="Fan"' in text, "what was written is kept"
    status, found = await api(ada, "POST", "nodes/n1/drain", {"reason": "Fan"})
    assert (status, found["error"]) == (409, "slurm-rejected")
    assert {each.outcome for each in site.reported} == {site.control.refusal}


async def test_new_starts_are_stopped_and_allowed(hub: ForgedHub, site: Site) -> None:
    ada = await hub.browser("ada")
    await ada.post(f"{ROOT}/stop-starts", {"profile": "", "partition": "", "until": "", "reason": "New driver"})
    assert site.administration.why_not(Request("gpu", "base")).startswith("Nothing new can be started at the moment:")
    _, text, _ = await ada.get(f"{ROOT}/starts")
    assert "New starts of everything are stopped" in plain(text)
    [rule] = site.administration.stops()
    await ada.post(f"{ROOT}/allow-starts", {"id": rule.id, "reason": "It is there"})
    assert site.administration.why_not(Request("gpu", "base")) == ""
    status, found = await api(ada, "POST", "start-stops", {"partition": "nowhere", "reason": "x"})
    assert (status, found["field"]) == (400, "partition")
    status, found = await api(ada, "POST", "start-stops", {"reason": "x", "wrong": 1})
    assert status == 400
    assert "Unknown: wrong" in found["message"]


async def test_a_message_is_escaped_on_the_page_and_seen_once(hub: ForgedHub, site: Site) -> None:
    ada, alice = await hub.browser("ada"), await hub.browser("alice")
    values = {"to": "user", "name": "alice", "text": EVIL, "ends": "", "reason": "Test"}
    _, text, _ = await ada.post(f"{ROOT}/message", values)
    assert "for 1 user." in text
    _, text, _ = await alice.get("/hub/home")
    assert "&lt;script&gt;alert(1)" in text
    assert EVIL not in text
    [sent] = site.administration.messages_of("alice")
    assert (await ada.post(f"/hub/carme/messages/{sent.id}/seen", {}))[0] == 303
    assert site.administration.messages_of("alice") == [sent], "it is not ada's"
    assert (await alice.get(f"/hub/carme/messages/{sent.id}/seen"))[0] == 302
    assert site.administration.messages_of("alice") == [sent], "a GET changes nothing"
    assert (await alice.post(f"/hub/carme/messages/{sent.id}/seen", {}))[0] == 303
    assert "alert(1)" not in (await alice.get("/hub/home"))[1]
    _, text, _ = await ada.get(f"{ROOT}/messages")
    assert "1 of 1 have seen it." in text
    assert EVIL not in text


@pytest.mark.parametrize(
    ("to", "name", "users"),
    [
        ("node", "n1", ["alice", "zoe"]),
        ("group", "course", ["alice"]),
        ("everybody", "", None),
        ("user", "stranger", "There is no user stranger in this hub."),
        ("group", "none", "There is no group none in this hub."),
        ("node", "n9", "There is nobody whom it would reach: node n9."),
        ("image", "nosuch", "There is nobody whom it would reach: image nosuch."),
        ("world", "", "To is one of user, node, group, image, everybody."),
        ("user", "", "Name the user."),
    ],
)
async def test_a_message_reaches_whom_it_names(hub: ForgedHub, site: Site, to: str, name: str, users: Any) -> None:
    ada = await hub.browser("ada")
    await hub.browser("alice")
    if to == "group" and orm.Group.find(hub.app.db, "course") is None:
        hub.app.db.add(orm.Group(name="course", users=[orm.User.find(hub.app.db, "alice")]))
        hub.app.db.commit()
    body = {"to": to, "name": name, "text": "Hello", "reason": "Test"}
    status, found = await api(ada, "POST", "messages", body)
    if isinstance(users, str):
        assert (status, found["message"]) == (400, users)
        return
    assert status == 201
    reached = [user for user in ("alice", "zoe", "ada") if site.administration.messages_of(user)]
    assert reached == (users or ["alice", "ada"])
    status, _ = await api(ada, "POST", f"messages/{found['id']}/withdraw", {"reason": "Not true"})
    assert (status, site.administration.messages_of("alice")) == (200, [])


async def test_the_sessions_own_program_reads_messages_and_says_that_they_are_seen(hub: ForgedHub, site: Site) -> None:
    alice = await hub.browser("alice")
    by = Actor("ada", "page")
    sent = await site.administration.send(by, "user alice", ["alice"], EVIL, "Test", mail=False)
    await site.administration.announce(by, Kind.MAINTENANCE, "Cooling", "Test", 0, time.time() + 600)
    headers = {**_api(alice), "Content-Type": "application/json"}
    path = f"/hub/api/carme/sessions/{ID}"
    _, text, _ = await alice.ask("GET", path, headers=headers)
    found = json.loads(text)
    assert [(each["id"], each["from"], each["text"]) for each in found["messages"]] == [(sent.id, "ada", EVIL)]
    assert [each["text"] for each in found["announcements"]] == ["Cooling"]
    status, _, _ = await alice.ask("POST", f"{path}/messages/{sent.id}/seen", headers=headers, data="{}")
    assert status == 200
    _, text, _ = await alice.ask("GET", path, headers=headers)
    assert json.loads(text)["messages"] == []
    assert (await alice.ask("POST", f"{path}/messages/{sent.id}/seen", headers=headers, data="{}"))[0] == 404
    bob = await hub.browser("bob")
    headers["X-XSRFToken"] = bob.xsrf
    assert (await bob.ask("GET", path, headers=headers))[0] in (403, 404)


async def test_an_owner_sees_their_account_and_no_other(hub: ForgedHub, site: Site) -> None:
    olga, alice, ada = await hub.browser("olga"), await hub.browser("alice"), await hub.browser("ada")
    site.open = [session(), session(user="zoe", request=Request("gpu", "base", account="chemistry"), id="2" * 36)]
    assert (await olga.get("/hub/carme/accounts"))[2]["Location"] == "/hub/carme/accounts/physics"
    _, text, _ = await olga.get("/hub/carme/accounts/physics")
    assert "alice" in text
    assert "zoe" not in text
    assert (await olga.get("/hub/carme/accounts/chemistry"))[0] == 404
    assert (await alice.get("/hub/carme/accounts/physics"))[0] == 404
    assert "You own no account" in (await alice.get("/hub/carme/accounts"))[1]
    assert "zoe" in (await ada.get("/hub/carme/accounts/chemistry"))[1]
    assert (await ada.get("/hub/carme/accounts/nowhere"))[0] == 404
    assert "Account physics" in (await olga.get("/hub/home"))[1]
    status, text, _ = await olga.ask("GET", "/hub/api/carme/accounts/physics/sessions", headers=_api(olga))
    assert (status, [row["user"] for row in json.loads(text)["open"]]) == (200, ["alice"])
    assert (await alice.ask("GET", "/hub/api/carme/accounts/physics/sessions", headers=_api(alice)))[0] == 404


def _api(browser: Browser) -> dict[str, str]:
    return {"X-XSRFToken": browser.xsrf, "Sec-Fetch-Mode": "cors"}
