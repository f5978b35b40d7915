"""Administrators' acts are recorded with who and why; what they stop stays stopped, and a message is seen once."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from traitlets.config import Config

from carme_hub.administration.administration import Administration, Unknown
from carme_hub.administration.audit import Audit
from carme_hub.domain.administration.acts import DONE, NOT_KNOWN, Act, Actor
from carme_hub.domain.administration.messages import Kind
from carme_hub.domain.administration.start_stops import StartsStopped
from carme_hub.domain.administration.texts import BadAct
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.sessions.session import Request
from carme_hub.errors import SlurmRejected, StoreError
from carme_hub.store.administration.store import AdministrationStore
from carme_hub.store.engine import CarmeStore

ADA = Actor("ada", "page")
REQUEST = Request("a100", "base", Gpus("a100", 1))


class Clock:
    """The time, as the test sets it."""

    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class Site:
    """A hub's administration, which can be restarted, and its audit file."""

    def __init__(self, folder: Path) -> None:
        self.file, self.clock = folder / "audit.jsonl", Clock()
        self.store = AdministrationStore(CarmeStore(url=f"sqlite:///{folder}/carme.sqlite").open(), "lab")
        self.reported: list[Act] = []

    async def start(self) -> Administration:
        audit = Audit(Config(), str(self.file), logging.getLogger("test"))

        def report(act: Act) -> None:
            self.reported.append(act)
            audit(act)

        found = Administration(self.store, report, lambda _at: "18:00", self.clock)
        await found.load()
        return found

    def audit(self) -> list[dict[str, Any]]:
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return [json.loads(line) for line in lines]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_stopped_starts_stay_stopped_over_a_restart_and_can_be_allowed_again(site: Site) -> None:
    hub = await site.start()
    hub.check_start(REQUEST)
    rule = await hub.stop_starts(ADA, "New driver", "a100", is_default=False)
    for each in (hub, await site.start()):
        with pytest.raises(StartsStopped, match=r"Nothing new of this profile .* at the moment: New driver\."):
            each.check_start(REQUEST)
        each.check_start(Request("cpu", "base"))
    hub = await site.start()
    await hub.allow_starts(ADA, rule.id, "The driver is there")
    hub.check_start(REQUEST)
    (await site.start()).check_start(REQUEST)
    with pytest.raises(Unknown):
        await hub.allow_starts(ADA, rule.id, "Again")


async def test_a_rule_with_an_end_ends_by_itself(site: Site) -> None:
    hub = await site.start()
    await hub.stop_starts(ADA, "Fan", until=site.clock.now + 60, is_default=False)
    assert hub.why_not(REQUEST).startswith("Nothing new can be started until 18:00: Fan.")
    site.clock.now += 60
    assert (hub.why_not(REQUEST), hub.stops()) == ("", [])


async def test_a_message_is_seen_once_also_after_a_restart(site: Site) -> None:
    hub = await site.start()
    sent = await hub.send(ADA, "group course", ["alice", "bob"], "Save your work", "Fan", mail=False)
    assert [each.text for each in hub.messages_of("alice")] == ["Save your work"]
    assert hub.messages_of("carol") == []
    await hub.seen("alice", sent.id)
    with pytest.raises(Unknown):
        await hub.seen("alice", sent.id)
    with pytest.raises(Unknown):
        await hub.seen("carol", sent.id)
    for each in (hub, await site.start()):
        assert each.messages_of("alice") == []
        assert [one.id for one in each.messages_of("bob")] == [sent.id]


async def test_a_message_ends_by_itself(site: Site) -> None:
    hub = await site.start()
    await hub.send(ADA, "user alice", ["alice"], "Hello", "News", site.clock.now + 60, mail=False)
    site.clock.now += 60
    assert hub.messages_of("alice") == []
    assert (await site.start()).messages_of("alice") == []


async def test_a_message_that_is_taken_back_is_gone_for_those_who_have_not_seen_it(site: Site) -> None:
    hub = await site.start()
    sent = await hub.send(ADA, "group course", ["alice", "bob"], "Hello", "News", mail=False)
    await hub.seen("alice", sent.id)
    await hub.withdraw(ADA, sent.id, "Wrong group")
    assert hub.messages_of("bob") == []
    assert site.reported[-1].details["seen"] == "1 of 2"
    with pytest.raises(Unknown):
        await hub.withdraw(ADA, sent.id, "Again")


async def test_announcements_are_for_all_in_their_time(site: Site) -> None:
    hub, now = await site.start(), site.clock.now
    later = await hub.announce(ADA, Kind.ANNOUNCEMENT, "Later", "News", now + 50, now + 100)
    await hub.announce(ADA, Kind.MAINTENANCE, "Cooling", "Repair", now + 50, now + 100)
    assert [each.text for each in hub.announcements()] == ["Cooling"]
    site.clock.now += 50
    assert [each.text for each in (await site.start()).announcements()] == ["Later", "Cooling"]
    await hub.withdraw(ADA, later.id, "Not true")
    assert [each.text for each in hub.announcements()] == ["Cooling"]
    site.clock.now += 50
    assert hub.announcements() == []


async def test_each_act_is_in_the_audit_log_with_who_and_why(site: Site) -> None:
    hub, now = await site.start(), site.clock.now
    sent = await hub.send(ADA, "user alice", ["alice"], "Hello", "News", mail=True)
    await hub.withdraw(ADA, sent.id, "Wrong")
    await hub.announce(ADA, Kind.ANNOUNCEMENT, "Hi", "News", now, now + 9)
    rule = await hub.stop_starts(Actor("service:ci", "rest"), "Driver", partition="gpu", is_default=True)
    await hub.allow_starts(ADA, rule.id, "Done")
    acts, count = site.store.acts(10)
    assert count == 5
    assert [each.action for each in reversed(acts)] == [
        *("message", "withdraw", "announce", "stop-starts", "allow-starts")
    ]
    events = site.audit()
    assert [event["action"] for event in events] == [each.action for each in reversed(acts)]
    assert {event["outcome"] for event in events} == {"done"}
    stop = events[3]
    assert (stop["actor"], stop["door"], stop["target"], stop["reason"]) == (
        *("service:ci", "rest", "partition gpu", "Driver"),
    )
    assert site.file.stat().st_mode & 0o777 == 0o600


async def test_what_is_refused_is_no_act_and_changes_nothing(site: Site) -> None:
    hub, now = await site.start(), site.clock.now
    for wrong in (
        hub.send(ADA, "user alice", ["alice"], "", "News", mail=False),
        hub.send(ADA, "user alice", ["alice"], "Hello", " ", mail=False),
        hub.send(ADA, "node n1", [], "Hello", "News", mail=False),
        hub.send(ADA, "user alice", ["alice"], "Hello", "News", now - 1, mail=False),
        hub.announce(ADA, Kind.ANNOUNCEMENT, "Hi", "News", now + 10, now + 5),
        hub.stop_starts(ADA, "", is_default=False),
    ):
        with pytest.raises(BadAct):
            await wrong
    assert (site.store.acts(10), site.audit(), hub.stops(), hub.messages_of("alice")) == (([], 0), [], [], [])


async def test_an_act_outside_of_the_database_is_stored_before_it_is_done(site: Site) -> None:
    hub = await site.start()
    seen: list[str] = []

    async def drain() -> None:
        [act], _ = site.store.acts(1)
        seen.append(act.outcome)

    await hub.recorded(ADA, "drain-node", "node1", "Fan", drain, {"users": "bob"})
    assert seen == [NOT_KNOWN]
    assert [(each.outcome, each.details) for each in site.store.acts(1)[0]] == [(DONE, {"users": "bob"})]


async def test_an_act_that_slurm_refuses_is_recorded_with_the_refusal(site: Site) -> None:
    hub = await site.start()

    async def refuse() -> None:
        raise SlurmRejected("There is no node node9.")

    with pytest.raises(SlurmRejected):
        await hub.recorded(ADA, "drain-node", "node9", "Fan", refuse)
    assert [each.outcome for each in site.store.acts(1)[0]] == ["There is no node node9."]
    assert [event["outcome"] for event in site.audit()] == ["There is no node node9."]


async def test_an_act_that_is_cut_off_is_recorded_as_not_known(site: Site) -> None:
    hub = await site.start()
    task = asyncio.create_task(hub.recorded(ADA, "drain-node", "node1", "Fan", asyncio.Event().wait))
    while not site.store.acts(1)[1]:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [each.outcome for each in site.store.acts(1)[0]] == [NOT_KNOWN]
    assert [event["outcome"] for event in site.audit()] == ["not known"]


async def test_what_was_done_is_not_denied_where_its_outcome_cannot_be_stored(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = await site.start()

    async def drain() -> None:
        def fail(*_: Any) -> Any:
            raise StoreError("away")

        monkeypatch.setattr(site.store, "finish", fail)

    await hub.recorded(ADA, "drain-node", "node1", "Fan", drain)
    assert [each.outcome for each in site.store.acts(1)[0]] == [NOT_KNOWN]
    assert [event["outcome"] for event in site.audit()] == [DONE]


async def test_where_the_database_is_away_nothing_is_done(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = await site.start()
    done: list[str] = []

    def fail(*_: Any) -> Any:
        raise StoreError("away")

    for name in ("begin", "add_stop", "add_message"):
        monkeypatch.setattr(site.store, name, fail)

    async def drain() -> None:
        done.append("drained")

    for work in (
        hub.recorded(ADA, "drain-node", "node1", "Fan", drain),
        hub.stop_starts(ADA, "Fan", is_default=False),
        hub.send(ADA, "user alice", ["alice"], "Hello", "News", mail=False),
    ):
        with pytest.raises(StoreError):
            await work
    assert (done, hub.stops(), hub.messages_of("alice"), site.audit()) == ([], [], [], [])
