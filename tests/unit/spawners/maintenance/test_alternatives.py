"""Starting a session again, moving it, stopping it for maintenance: each once, and a refusal loses nothing."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from affected_parts import ID, OPTIONS, session, window
from booked_parts import GPU, HOUR, booking, cluster, job, place
from tornado import web

from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import Reservation, State
from carme_hub.domain.ledger.entries import ONE
from carme_hub.domain.quotas.policy import Policy
from carme_hub.domain.sessions.profile_choice import parse_profiles
from carme_hub.domain.sessions.session import MAINTENANCE_STOP
from carme_hub.errors import SlurmUnreachable
from carme_hub.spawners.form.form import Offer
from carme_hub.spawners.form.slots import Bookings, CalendarView
from carme_hub.spawners.maintenance import alternatives
from carme_hub.spawners.maintenance.alternatives import (
    NotAffected,
    NotMoved,
    PendingActions,
    check_affected,
    move,
    refund_of,
    restart,
    stop_for_maintenance,
)
from carme_hub.spawners.session_state import STOPPED


def now_window(**more: Any) -> Reservation:
    now = int(time.time())
    return window(**more).replace(period=Period(now + HOUR, now + 3 * HOUR))


class Spawner:
    """A server of sam's that runs, and notes why it was stopped."""

    def __init__(self) -> None:
        self.user_options: dict[str, Any] = dict(OPTIONS)
        self.pending, self.ready, self.active = "", True, True
        self.stop_reason, self.replaces, self.noted = STOPPED, "", ""
        self.failed: BaseException | None = None
        self.orm_spawner = SimpleNamespace(display_name="My work")

    @property
    def _failed(self) -> bool:
        return self.failed is not None

    async def offer(self) -> Offer:
        profiles, there = parse_profiles([GPU]), cluster()
        look = Bookings(
            "sam", accounts=("teaching",), calendar=CalendarView(was_read=True), cluster=there, now=time.time()
        )
        return Offer(profiles, ("teaching",), {"base": ""}, cluster=there, bookings=look)


class Site:
    """A hub with one session in the way of maintenance: handler, shared part and user in one."""

    def __init__(self) -> None:
        self.spawner = Spawner()
        self.known: tuple[Reservation, ...] = (now_window(),)
        self.open = {ID: session(created=time.time())}
        self.started: list[tuple[str, str, Any, str]] = []
        self.stops = 0
        self.refuses: Callable[[], None] = lambda: None
        self.cost_state = "ok"
        self.asked_instead_of = ""
        self.refunds = ("maintenance",)
        now = time.time()
        self.job = replace(job(), name=f"carme-{ID}", user="sam", start=now - HOUR, end=now + 2 * HOUR, time_limit=180)
        context = SimpleNamespace(factor=lambda *_: ONE)
        self.part: Any = SimpleNamespace(
            slots=self,
            client=SimpleNamespace(find=self.find),
            registry=SimpleNamespace(current=self.open.get),
            reconciler=SimpleNamespace(seen_terminal=lambda _id: False),
            cost=self.cost,
            admission=SimpleNamespace(
                policy=lambda: Policy(refunds=self.refunds), ledger=SimpleNamespace(context=context)
            ),
            log=logging.getLogger("test"),
        )
        self.user: Any = SimpleNamespace(
            name="sam", spawner=self.spawner, spawners={"": self.spawner}, get_or_create_spawner=self.spawner_again
        )

    async def read(self, question: Callable[[Any], list[Reservation]]) -> list[Reservation]:
        return question(SimpleNamespace(overlapping=lambda _period, _states: list(self.known)))

    async def find(self, name: str, user: str) -> list[Any]:
        assert (name, user) == (self.job.name, "sam")
        return [self.job]

    async def cost(self, _user: Any, _request: Any, instead_of: str) -> tuple[Any, dict[str, Any]]:
        self.asked_instead_of = instead_of
        return SimpleNamespace(state=self.cost_state, sentence="sam has 0 left."), {}

    def spawner_again(self, _name: str, _display: str, **_more: Any) -> Spawner:
        return self.spawner

    async def stop_single_user(self, _user: Any, _name: str) -> Any:
        self.stops += 1

        async def stop() -> None:
            await asyncio.sleep(0)
            self.spawner.noted = self.spawner.stop_reason
            self.spawner.active = self.spawner.ready = False
            self.open.clear()

        return asyncio.ensure_future(stop())

    async def spawn_single_user(self, _user: Any, name: str, display: str, options: Any) -> None:
        self.refuses()
        self.started.append((name, display, options, self.spawner.replaces))

    async def move(self) -> None:
        await move(self, self.part, self.user, session())

    async def restart(self) -> None:
        await restart(self, self.part, self.user, session())

    async def stop_for_maintenance(self) -> None:
        await stop_for_maintenance(self, self.part, self.user, session())


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(alternatives, "FAILURE_WAIT", 5.0)
    return Site()


async def test_a_session_is_stopped_and_starts_again_for_what_is_left_in_place_of_itself(site: Site) -> None:
    await site.move()
    [(name, _, options, replaces)] = site.started
    assert (name, replaces, site.asked_instead_of) == ("", ID, ID)
    assert options == {**OPTIONS, "time_minutes": 119}
    assert site.spawner.noted == "Stopped to go on elsewhere, before maintenance of n1."
    assert not site.spawner.noted.startswith(MAINTENANCE_STOP)
    assert (site.spawner.stop_reason, site.spawner.replaces) == (STOPPED, ""), "the next stop is an ordinary one"


async def test_a_restart_has_the_options_of_the_start_and_needs_no_maintenance(site: Site) -> None:
    site.known = ()
    await site.restart()
    assert site.started == [("", "", OPTIONS, ID)]
    assert site.asked_instead_of == ID, "the hold of what is stopped does not stand in the way"
    assert site.spawner.noted == "Stopped to start again with the same options."
    assert site.spawner.stop_reason == STOPPED


async def test_a_named_server_goes_on_under_its_name(site: Site) -> None:
    site.user.spawners = {"work": site.spawner}
    site.open[ID] = session(server_name="work")
    await move(site, site.part, site.user, session(server_name="work"))
    assert [each[:2] for each in site.started] == [("work", "My work")]


async def test_who_makes_way_is_noted_as_such_and_nothing_starts(site: Site) -> None:
    await site.stop_for_maintenance()
    assert site.spawner.noted == f"{MAINTENANCE_STOP}n1."
    assert (site.stops, site.started, site.spawner.stop_reason) == (1, [], STOPPED)


@pytest.mark.parametrize(
    "change",
    [
        lambda site: setattr(site, "known", ()),
        lambda site: setattr(site, "known", (now_window(state=State.CANCELLED),)),
        lambda site: setattr(site, "known", (now_window(nodes=("n2",)),)),
        lambda site: setattr(site, "known", (booking(places=(place(),)).replace(period=now_window().period),)),
        lambda site: setattr(site, "job", replace(site.job, end=time.time() + HOUR / 2)),
        lambda site: site.open.clear(),
        lambda site: site.open.update({ID: session(cancel_wanted=1.0)}),
        lambda site: setattr(site.part, "slots", None),
        lambda site: setattr(site.spawner, "pending", "stop"),
    ],
)
@pytest.mark.parametrize("what", ["move", "stop_for_maintenance"])
async def test_what_is_not_in_the_way_at_that_moment_is_left_alone(
    site: Site, what: str, change: Callable[[Site], None]
) -> None:
    change(site)
    with pytest.raises(NotAffected):
        await getattr(site, what)()
    assert (site.stops, site.started) == (0, [])


@pytest.mark.parametrize("what", ["move", "stop_for_maintenance"])
async def test_a_slurm_that_does_not_answer_changes_nothing(site: Site, what: str) -> None:
    async def silent(*_: Any) -> Any:
        raise SlurmUnreachable("slurmctld does not answer")

    site.part.client.find = silent
    with pytest.raises(SlurmUnreachable):
        await getattr(site, what)()
    assert site.stops == 0


@pytest.mark.parametrize("what", ["restart", "move"])
async def test_what_could_not_start_again_is_not_stopped(site: Site, what: str) -> None:
    site.cost_state = "refused"
    with pytest.raises(NotMoved, match=r"not stopped: sam has 0 left\."):
        await getattr(site, what)()
    site.cost_state = "ok"
    site.spawner.user_options = {**OPTIONS, "gpus": 9}
    with pytest.raises(NotMoved, match="you asked for 9"):
        await getattr(site, what)()
    assert (site.stops, site.started) == (0, [])


async def test_a_start_that_the_hub_refuses_at_once_is_said_and_another_failure_is_left_to_its_page(site: Site) -> None:
    def too_many() -> None:
        raise web.HTTPError(429, "Active user limit exceeded.")

    site.refuses = too_many
    with pytest.raises(web.HTTPError, match="Active user limit"):
        await site.move()
    again = Site()
    again.spawner.failed = RuntimeError("Slurm refused it")
    again.refuses = too_many
    await again.move()
    assert again.spawner.replaces == ""


async def test_asked_twice_it_is_done_once_and_another_thing_meanwhile_is_refused(site: Site) -> None:
    doing = PendingActions()
    twice = [doing.once(ID, "move", site.move) for _ in range(2)]
    both = asyncio.gather(*twice)
    await asyncio.sleep(0)
    with pytest.raises(NotAffected, match="being stopped already"):
        await doing.once(ID, "make-way", site.stop_for_maintenance)
    assert await both == [True, True]
    assert (site.stops, len(site.started)) == (1, 1)
    with pytest.raises(NotAffected):
        await doing.once(ID, "move", site.move)
    assert (site.stops, len(site.started)) == (1, 1)


async def test_what_takes_long_goes_on_when_nobody_waits(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alternatives, "STOP_WAIT", 0.01)
    doing, go_on = PendingActions(), asyncio.Event()

    async def slow() -> None:
        await go_on.wait()
        await site.stop_for_maintenance()

    assert await doing.once(ID, "make-way", slow) is False
    go_on.set()
    monkeypatch.setattr(alternatives, "STOP_WAIT", 5.0)
    assert await doing.once(ID, "make-way", slow) is True
    assert site.stops == 1


async def test_what_is_said_of_the_refund_is_what_the_policy_says(site: Site) -> None:
    found, now = await check_affected(site.part, session()), time.time()
    assert refund_of(site.part, found, now) == (
        True,
        "GPU time that it holds and has not used is released. What it has used, 1 GPU-hour so far, is refunded "
        "within a few minutes.",
    )
    site.refunds = ()
    assert refund_of(site.part, found, now)[0] is False
    assert refund_of(site.part, found, now)[1].endswith("What it has used, 1 GPU-hour so far, is charged.")
    site.part.admission = None
    assert refund_of(site.part, found, now) == (False, "")
