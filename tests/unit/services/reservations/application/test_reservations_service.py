"""The reservations service as a whole: what is booked comes to Slurm, is paid, and is told; whatever is silent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import forged_calendar_pages
import pytest
import pytest_asyncio
from forged_calendar_pages import GROUPS, HOUR, NODES, NOW, Site, running

from carme_hub.booking.calendar import SlotTaken
from carme_hub.booking.context import OverBudget
from carme_hub.domain.calendar.capacity import Need
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import State
from carme_hub.domain.calendar.slurm_reservations import Create, Delete, SlurmReservation, Step
from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.domain.ledger.usage import Usage
from carme_hub.errors import CarmeError, SlurmUnreachable
from carme_hub.services.reservations.app import ReservationsService

START = int(NOW) + 24 * HOUR


@dataclass
class SlurmThatKeeps:
    """Slurm's reservations, kept as they are asked for."""

    there: dict[str, SlurmReservation] = field(default_factory=dict)
    silent: bool = False

    async def show(self) -> tuple[SlurmReservation, ...]:
        if self.silent:
            raise SlurmUnreachable("secret words of Slurm")
        return tuple(self.there.values())

    async def take(self, step: Step) -> str:
        if isinstance(step, Create):
            self.there[step.wanted.name] = step.wanted
        elif isinstance(step, Delete):
            del self.there[step.name]
        else:
            have = self.there[step.name]
            self.there[step.name] = replace(have, users=step.users or have.users, period=step.period or have.period)
        return ""


@pytest_asyncio.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    async with running(tmp_path, monkeypatch) as site:
        keep(site)
        yield site


def keep(site: Site) -> SlurmThatKeeps:
    """Let a Slurm keep what is booked."""
    site.kept = SlurmThatKeeps()  # type: ignore[attr-defined]
    site.service.reconciler._slurm = site.kept  # type: ignore[attr-defined]
    return site.kept  # type: ignore[attr-defined,no-any-return]


async def turn(site: Site, seconds: float = 0.0) -> Any:
    """Let time pass, and make a pass."""
    site.now += seconds
    site.service.slurm_view.silent = site.service.slurm_view.silent or "asked too long ago"
    return await site.service.reconciler.once()


async def test_what_is_booked_is_in_slurm_after_a_pass_and_then_equal(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one,) = await site.book("tina", "Class", START, need=Need("a100", 1, 4), group="ml-course")
    monkeypatch.setitem(GROUPS, "alice", (*GROUPS["alice"], "account:teaching"))
    first = await turn(site)
    assert (first.steps, first.equal) == (1, False)
    (there,) = await site.service.reconciler._slurm.show()
    assert there.name in one.names()
    assert there.users == {"tina", "alice"}, "with the members of the group"
    assert (await turn(site)).equal
    answer = await site.ask("api/v1/health")
    assert json.loads(answer.body) == {"keeping": True, "age": 0, "equal": True, "faults": []}
    assert site.service.health.drift(site.now + 5) == 5


async def test_before_the_hub_has_said_who_is_who_nobody_is_shut_out_of_their_class(site: Site) -> None:
    await site.book("tina", "Class", START, need=Need("a100", 1, 4), group="ml-course")
    await turn(site)
    before = await site.service.reconciler._slurm.show()
    site.service.hub_users.people, site.service.hub_users._answered_at = {}, float("-inf")
    with pytest.raises(CarmeError, match="The hub does not say who is in which group"):
        await turn(site)
    assert await site.service.reconciler._slurm.show() == before


async def test_what_others_have_reserved_by_hand_cannot_be_booked_and_what_is_booked_counts_once(site: Site) -> None:
    await site.book("tina", "Class", START, need=Need("a100", 4))
    by_hand = SlurmReservation("training", Period(START, START + HOUR), frozenset({"gpu2"}), {"a100": 3}, 24)
    site.kept.there["training"] = by_hand  # type: ignore[attr-defined]
    await turn(site)
    await turn(site)
    with pytest.raises(SlotTaken) as refused:
        await site.book("alice", "Too much", START, 1, need=Need("a100", 2))
    assert refused.value.conflicts[0].types == ("h100",)
    (one,) = await site.book("alice", "The last one", START, 1, need=Need("a100", 1))
    assert one.places[0].node == "gpu2"
    assert set(site.kept.there) > {"training"}, "what is not ours is not touched"  # type: ignore[attr-defined]


async def test_what_was_reserved_by_hand_is_not_free_while_slurm_does_not_say_what_is(site: Site) -> None:
    by_hand = SlurmReservation("training", Period(START, START + HOUR), frozenset({"gpu1", "gpu2"}), {}, 1000)
    site.kept.there["training"] = by_hand  # type: ignore[attr-defined]
    await turn(site)
    site.kept.silent = True  # type: ignore[attr-defined]
    assert (await turn(site, 60)).unreachable
    with pytest.raises(SlotTaken):
        await site.book("alice", "Too much", START, 1, need=Need("a100", 1))


async def test_nothing_is_promised_before_slurm_has_said_what_is_reserved(site: Site) -> None:
    site.service.reconciler.seen = None
    with pytest.raises(SlurmUnreachable, match="listed its reservations yet"):
        await site.book("alice", "Early", START, 1, need=Need("a100", 1))


async def test_a_node_that_is_out_cannot_be_booked_until_it_may_be_back(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    down = replace(NODES[2], state="down", usable=False)
    monkeypatch.setattr(forged_calendar_pages, "NODES", (*NODES[:2], down))
    await turn(site)
    with pytest.raises(SlotTaken):
        await site.book("tina", "Now", NOW + 60, 0.5, need=Need("h100", 1))
    (later,) = await site.book("tina", "Later", NOW + 2 * HOUR, need=Need("h100", 1))
    assert later.places[0].node == "gpu3"


async def test_only_the_partitions_that_the_site_offers_are_booked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forged_calendar_pages, "NODES", (replace(NODES[0], partitions=("classes",)), *NODES[1:]))
    async with running(tmp_path, monkeypatch, partitions=["classes"]) as site:
        facts = await site.service.bookings.supply()
        assert [each.name for each in facts.nodes] == ["gpu1"]


async def test_while_slurm_is_silent_what_was_last_seen_stays_and_the_service_says_so(site: Site) -> None:
    await turn(site)
    site.slurm.silent = site.kept.silent = True  # type: ignore[attr-defined]
    await turn(site, 10)
    assert site.service.silent
    assert site.service.slurm_view.nodes_now() is None, "no promise is found broken because Slurm is silent"
    assert site.service.slurm_view.jobs is None
    (one,) = await site.book("tina", "Class", START)
    assert one.state is State.CONFIRMED
    site.now += site.service.health.max_silence
    answer = await site.ask("api/v1/health")
    assert json.loads(answer.body)["keeping"] is False
    assert b"secret" not in answer.body
    site.slurm.silent = site.kept.silent = False  # type: ignore[attr-defined]
    assert (await turn(site)).steps == 1


async def test_slurm_is_not_asked_again_for_each_booking(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    nodes = site.slurm.nodes

    async def counted() -> Any:
        asked.append(site.now)
        return await nodes()

    monkeypatch.setattr(site.slurm, "nodes", counted)
    for _ in range(5):
        await site.service.reconciler.once()
    assert len(asked) <= 1
    site.now += 10
    await site.service.reconciler.once()
    assert len(asked) <= 2


# -- money ------------------------------------------------------------------------------------------------------------

BUDGET = '{"zone": "Europe/Berlin", "quotas": [{"id": "week", "account": "*", "gpu_time": 20, "window": "total"}]}'


def jobs(*found: Usage) -> Any:
    async def usage(start: float) -> Sequence[Usage]:
        return [each for each in found if not each.end or each.end >= start]

    return usage


async def held(site: Site) -> int:
    return (await site.service.balances(["teaching"]))["teaching"].held // GPU_HOUR


async def test_gpu_time_is_held_with_the_booking_and_a_booking_without_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch, BUDGET) as site:
        await site.book("tina", "Class", START, 3, need=Need("a100", 1, 4))
        assert await held(site) == 12
        with pytest.raises(OverBudget):
            await site.book("tina", "Another", START + 10 * HOUR, 3, need=Need("a100", 1, 4))
        assert await held(site) == 12
        assert len(await site.service.bookings.mine(site.booker("tina"), 0)) == 1


async def test_what_is_moved_and_approved_again_is_held_all_the_while_and_given_back_when_denied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch, BUDGET, approval_above=8) as site:
        keep(site)
        bookings, root, tina = site.service.bookings, site.booker("root"), site.booker("tina")
        (one,) = await site.book("tina", "Class", START, need=Need("a100", 1, 4))
        (never,) = await site.book("tina", "Too long", START + 48 * HOUR, 3, need=Need("a100", 1, 4))
        (never,) = await bookings.move(tina, never.id, never.version, period=Period(START, START + 3 * HOUR))
        assert (never.state, await held(site)) == (State.PENDING, 8), "what was never confirmed holds nothing"
        for hours, approve, after in ((3, True, 12), (4, False, 0)):
            (one,) = await bookings.move(tina, one.id, one.version, period=Period(START, START + hours * HOUR))
            assert (one.state, await held(site)) == (State.PENDING, 4 * hours)
            await turn(site)
            assert await held(site) == 4 * hours
            (one,) = await bookings.decide(root, one.id, approve)
            assert await held(site) == after
        assert one.state is State.CANCELLED


async def test_what_was_not_used_is_refunded_when_it_is_over(site: Site) -> None:
    (one,) = await site.book("tina", "Class", START, need=Need("a100", 1, 4))
    assert await held(site) == 8
    await turn(site, 24 * HOUR)
    await turn(site, 3 * HOUR)
    with site.service.calendar.store.reading("lab") as reads:
        ended = reads.get(one.id)
    assert ended is not None
    assert ended.state is State.ENDED
    assert await held(site) == 0
    assert (await site.service.balances(["teaching"]))["teaching"].used == 0


async def test_where_booked_time_is_charged_what_jobs_used_is_not_charged_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch, charge="booked") as site:
        keep(site)
        (one,) = await site.book("tina", "Class", START, 2, need=Need("a100", 1, 4))
        used = Usage(
            job_id=7,
            submitted=START + 60,
            shown_id="7",
            user="tina",
            account="teaching",
            partition="gpu",
            qos="",
            name="by-hand",
            nodes="gpu1",
            phase=Phase.TERMINAL,
            gpus=(Gpus("a100", 4),),
            start=START + HOUR,
            end=START + 2 * HOUR,
            state="COMPLETED",
            reservation=one.names()[0],
        )
        site.service._usage = jobs(used)
        await turn(site)
        site.now = START + 60.0
        await turn(site)
        assert await held(site) == 8
        await turn(site, 2 * HOUR - 30)
        assert await held(site) > 0, "accounting may not know yet of all that ran"
        await turn(site, 30)
        balance = (await site.service.balances(["teaching"]))["teaching"]
        assert (balance.held, balance.used) == (0, 4 * GPU_HOUR), "the hour in which nothing ran"
        await turn(site, 60)
        assert (await site.service.balances(["teaching"]))["teaching"].used == 4 * GPU_HOUR


async def test_booked_time_is_charged_where_slurm_had_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, monkeypatch, charge="booked", no_show=0) as site:
        kept = keep(site)
        take, refused = kept.take, ""

        async def refuse(step: Step) -> str:
            return refused or await take(step)

        kept.take = refuse  # type: ignore[method-assign]
        refused = "Error creating the reservation: Invalid user id"
        for start in (0, 3, 6):  # the first is refused throughout, the second in its first hour, the third never
            await site.book("tina", "Class", START + start * HOUR, 2, need=Need("a100", 1, 4))
        used = []
        await turn(site, 24 * HOUR - 60)
        for minutes in range(0, 8 * 60 + 15, 5):
            refused = refused if minutes < 4 * 60 else ""
            site.now = START + minutes * 60
            await turn(site)
            balance = (await site.service.balances(["teaching"]))["teaching"]
            used.append(round(balance.used / GPU_HOUR, 1))
        assert used[2 * 12 + 2] == 0
        assert used[5 * 12 + 2] == pytest.approx(4, abs=0.4)
        assert used[-1] == pytest.approx(12, abs=0.4)
        assert await held(site) == 0


async def test_accounting_that_is_silent_keeps_the_hold_until_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(_start: float) -> Sequence[Usage]:
        raise SlurmUnreachable("no answer")

    async with running(tmp_path, monkeypatch, charge="booked") as site:
        keep(site)
        await site.book("tina", "Class", START, 2, need=Need("a100", 1, 4))
        await turn(site)
        await turn(site, 25 * HOUR)
        site.service._usage = silent
        await turn(site, 2 * HOUR)
        assert await held(site) == 8
        site.service._usage = jobs()
        await turn(site, 60)
        assert await held(site) == 0


async def test_a_hub_without_a_ledger_books_free_of_charge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, monkeypatch) as site:
        service = ReservationsService(config=site.service.config.copy())
        service.config.CarmeQuotas.enabled = False
        engine = site.service.calendar.store._ledger._engine
        service.clock = lambda: NOW
        parts = {"client": site.slurm, "reservations": None, "usage": jobs(), "by_node": True}
        service.compose(site.service.settings, engine, "lab", **parts)  # type: ignore[arg-type]
        await service.slurm_view.look()
        service.reconciler.seen = ()
        assert not service.charged
        facts = await service.bookings.supply()
        assert facts.by_node
        assert "whole nodes" in facts.note


# -- audit ------------------------------------------------------------------------------------------------------------


async def test_each_change_by_a_person_is_one_event_and_what_comes_with_the_time_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "audit.jsonl"
    async with running(tmp_path, monkeypatch) as site:
        site.service.calendar.store._after._events._file = str(file)  # type: ignore[union-attr]
        keep(site)
        (one,) = await site.book("tina", "Class", START, need=Need("a100", 1, 4), group="ml-course")
        site.now = START + 60.0
        await turn(site)
        await site.service.bookings.release(site.booker("tina"), one.id, reason="Done early")
        events = [json.loads(line) for line in file.read_text().splitlines()]
    told = [(each["action"], each["actor"], each["state"], each.get("reason", "")) for each in events]
    assert told == [("booked", "tina", "confirmed", ""), ("changed", "tina", "released", "Done early")]
    assert (events[0]["gpus"], events[0]["group"], events[0]["places"]) == (4, "ml-course", "gpu1:a100:4")
    assert file.stat().st_mode & 0o777 == 0o600


async def test_an_event_that_cannot_be_told_fails_no_booking(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise OSError("disk full")

    site.service.log.propagate = True
    monkeypatch.setattr(site.service.calendar.store._after._events, "emit", broken)  # type: ignore[union-attr]
    (one,) = await site.book("tina", "Class", START)
    assert one.state is State.CONFIRMED
    assert "No audit event" in caplog.text
