"""What people are told of bookings: who, when, in which words, and each thing once, also after a restart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
import pytest_asyncio
from forged_calendar_pages import HOUR, NOW, Site, running

from carme_hub.booking.bookings import NoLedger
from carme_hub.domain.calendar.capacity import Need, Place
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.recurrence import Recurrence
from carme_hub.domain.calendar.reservations import Reservation, State
from carme_hub.domain.cluster.jobs import JOB_NAME_PREFIX, Job, Phase
from carme_hub.domain.quotas.policy import Policy
from carme_hub.domain.quotas.rules import Person
from carme_hub.errors import StoreError
from carme_hub.services.notifications import address
from carme_hub.services.reservations.application.notices import Notices
from carme_hub.store.ledger.idempotency import SentNotice

START = int(NOW) + 24 * HOUR
CLASS = Need("a100", 1, 4)


@pytest_asyncio.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    async with running(tmp_path, monkeypatch, approval_above=100) as site:
        site.service.hub_users.people["root"] = Person("root", roles=frozenset({"admin"}))
        await site.service.notices.check_changes()
        yield site


async def told(site: Site) -> dict[str, str]:
    """Make a round; return the text by user."""
    return {each.user: each.text for each in await site.service.notices.check_changes()}


def write(site: Site, one: Reservation) -> None:
    """Write a reservation as the keeper would."""
    with site.service.calendar.store.transaction("lab") as writes:
        writes.save(one)


async def test_who_booked_is_told_that_it_is_confirmed_and_for_whom_it_is_that_they_have_it(site: Site) -> None:
    await site.book("tina", "Class", START, need=CLASS, group="ml-course")
    assert await told(site) == {
        "tina": "“Class” is confirmed: 4 × 1 a100 from Saturday 21 November at 13:00 to Saturday 21 November at 15:00.",
        "alice": "tina has booked 4 × 1 a100 for you, “Class”, from Saturday 21 November at 13:00 to Saturday 21 "
        "November at 15:00.",
    }
    assert await told(site) == {}


async def test_a_restart_says_nothing_twice(site: Site) -> None:
    await site.book("tina", "Class", START, need=CLASS, group="ml-course")
    assert len(await told(site)) == 2
    assert await restarted(site).check_changes() == []


def restarted(site: Site) -> Notices:
    """Return the notices of a service that has been started anew, and give them to it."""
    old = site.service.notices
    again = Notices(
        old._settings,
        old._store,
        old._log,
        read=old._read,
        people=old._people,
        administrators=old._administrators,
        jobs=old._jobs,
        remind=old._remind,
        refunds=old._refunds,
    )
    site.service.notices = again
    return again


async def test_a_move_just_before_a_restart_is_told_after_it_and_once(site: Site) -> None:
    (one,) = await site.book("tina", "Class", START, need=CLASS, group="ml-course")
    await told(site)
    site.now += 60
    await site.service.bookings.move(
        site.booker("root"), one.id, one.version, period=Period(START + HOUR, START + 3 * HOUR)
    )
    site.now += HOUR
    restarted(site)
    found = await told(site)
    assert sorted(found) == ["alice", "tina"]
    assert found["tina"].startswith("root has moved “Class”. It is")
    restarted(site)
    assert await told(site) == {}


async def test_other_nodes_just_before_a_restart_are_told_after_it(site: Site) -> None:
    (one,) = await site.book("tina", "Class", START, need=CLASS)
    await told(site)
    elsewhere = (Place("gpu2", "a100", 4, 4, cpus=32),)
    write(site, one.replace(places=elsewhere, version=2, changed=site.now, actor="carme-hub"))
    restarted(site)
    assert "is on gpu2 now instead of gpu1." in (await told(site))["tina"]
    restarted(site)
    assert await told(site) == {}


async def test_a_move_is_told_though_the_database_was_away_when_it_was_to_be_told(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one,) = await site.book("tina", "Class", START, need=CLASS)
    await told(site)
    site.now += 60
    await site.service.bookings.move(
        site.booker("root"), one.id, one.version, period=Period(START + HOUR, START + 3 * HOUR)
    )

    async def away(_found: object) -> list[SentNotice]:
        raise StoreError("the database is away")

    with monkeypatch.context() as once:
        once.setattr(site.service.notices, "notify", away)
        with pytest.raises(StoreError):
            await site.service.notices.check_changes()
    assert list(await told(site)) == ["tina"]


async def test_a_booking_that_comes_again_is_told_once_with_how_often(site: Site) -> None:
    weekly = Recurrence("Europe/Berlin", wall("2026-11-24T09:00"), wall("2026-11-24T11:00"), "FREQ=WEEKLY;COUNT=3")
    await site.book("tina", "Class", START, need=CLASS, recurrence=weekly)
    found = await told(site)
    assert list(found) == ["tina"]
    assert "from Tuesday 24 November at 09:00 to Tuesday 24 November at 11:00 and 2 more times." in found["tina"]


def wall(text: str) -> datetime:
    return datetime.fromisoformat(text)


async def test_administrators_are_told_what_waits_and_its_owner_what_they_decided(site: Site) -> None:
    (one,) = await site.book("tina", "Large", START, 24, need=Need("a100", 0, 2))
    assert one.state is State.PENDING
    found = await told(site)
    assert list(found) == ["root"]
    assert found["root"].startswith("tina asks for 2 × a whole node of a100 from Saturday")
    await site.service.bookings.decide(site.booker("root"), one.id, True, "For the deadline")
    found = await told(site)
    assert list(found) == ["tina"]
    assert "“Large” is confirmed by root: 2 × a whole node of a100" in found["tina"]
    assert found["tina"].endswith("Reason: For the deadline.")
    assert await told(site) == {}


async def test_what_is_approved_again_after_a_move_is_told_again(site: Site) -> None:
    site.service.bookings._context = replace(site.service.bookings._context, ledger=NoLedger())
    (one,) = await site.book("tina", "Large", START, 24, need=Need("a100", 0, 2))
    await told(site)
    for hour in (1, 2):
        (done,) = await site.service.bookings.decide(site.booker("root"), one.id, True)
        assert list(await told(site)) == ["tina"], hour
        site.now += 5
        period = Period(START + hour * HOUR, START + (hour + 24) * HOUR)
        (moved,) = await site.service.bookings.move(site.booker("tina"), one.id, done.version, period=period)
        assert moved.state is State.PENDING
        assert list(await told(site)) == ["root"], hour


async def test_what_is_denied_is_told_to_its_owner_and_not_to_whom_it_was_never_promised(site: Site) -> None:
    (one,) = await site.book("tina", "Large", START, 24, need=Need("a100", 0, 2), group="ml-course")
    await told(site)
    await site.service.bookings.decide(site.booker("root"), one.id, False, "Too much")
    found = await told(site)
    assert list(found) == ["tina"]
    assert found["tina"].endswith("was cancelled by root. Reason: Too much.")


async def test_who_was_invited_is_told_that_it_is_off(site: Site) -> None:
    (one,) = await site.book("tina", "Class", START, need=CLASS, group="ml-course")
    await told(site)
    site.now += 600
    await site.service.bookings.cancel(site.booker("tina"), one.id, reason="I am ill")
    found = await told(site)
    assert list(found) == ["alice"], "who did it knows it"
    assert found["alice"].endswith("was cancelled by tina. Reason: I am ill.")


async def test_a_move_is_told_to_whom_it_is_for_and_to_its_owner_where_somebody_else_did_it(site: Site) -> None:
    (one,) = await site.book("tina", "Class", START, need=CLASS, group="ml-course")
    await told(site)
    for who, users in (("tina", ["alice"]), ("root", ["alice", "tina"])):
        site.now += 60
        period = Period(one.period.start + HOUR, one.period.end + HOUR)
        (one,) = await site.service.bookings.move(site.booker(who), one.id, one.version, period=period)
        found = await told(site)
        assert sorted(found) == users
        assert found["alice"].startswith(f"{who} has moved “Class”. It is from Saturday 21 November at")


async def test_it_is_told_shortly_before_it_starts(site: Site) -> None:
    await site.book("tina", "Class", START, need=CLASS, group="ml-course")
    await told(site)
    site.now = START - 1000.0
    assert await told(site) == {}
    site.now = START - 880.0
    found = await told(site)
    assert sorted(found) == ["alice", "tina"]
    assert found["alice"] == "“Class” begins in 15 min, today at 13:00: 4 × 1 a100, until today at 15:00."
    site.now = START - 20.0
    assert await told(site) == {}


async def test_what_nobody_used_is_told_to_its_owner(site: Site) -> None:
    (one,) = await site.book("tina", "Class", START, need=CLASS, group="ml-course")
    await told(site)
    site.now = START + 900.0
    active = one.in_state(State.ACTIVE, START, actor="carme-hub")
    write(site, active)
    write(site, active.in_state(State.RELEASED, site.now, actor="carme-hub", reason="unused for 15 min"))
    found = await told(site)
    assert list(found) == ["tina"]
    assert "was given back. Reason: unused for 15 min." in found["tina"]


async def test_a_promise_that_cannot_be_kept_is_told_once_in_its_words(site: Site) -> None:
    (one,) = await site.book("tina", "Class", START, need=CLASS)
    await told(site)
    site.now += 60
    broken = one.replace(problem="gpu1 is down.", version=2, changed=site.now, actor="carme-hub")
    write(site, broken)
    assert (await told(site))["tina"].endswith("15:00: gpu1 is down.")
    assert await told(site) == {}
    shown = await site.service.notices.open_for("tina")
    assert [(each["level"], each["link"]) for each in shown] == [("danger", f"bookings/{one.id}")]
    assert await site.service.notices.open_for("bob") == []
    site.now += 60
    write(site, broken.replace(problem="", version=3, changed=site.now))
    assert await told(site) == {}
    assert await site.service.notices.open_for("tina") == []


async def test_other_nodes_are_told_to_its_owner(site: Site) -> None:
    (one,) = await site.book("tina", "Class", START, need=CLASS)
    await told(site)
    site.now += 60
    elsewhere = (Place("gpu2", "a100", 4, 4, cpus=32),)
    reason = "moved from gpu1 to gpu2: gpu1 is down"
    write(site, one.replace(places=elsewhere, version=2, changed=site.now, actor="carme-hub", reason=reason))
    found = await told(site)
    assert "is on gpu2 now instead of gpu1. Reason: moved from gpu1 to gpu2: gpu1 is down." in found["tina"]


async def test_whose_session_would_be_in_the_way_of_maintenance_is_told(site: Site) -> None:
    def job(id: int, user: str, end: float, name: str = JOB_NAME_PREFIX) -> Job:
        return Job(id, name + str(id), user, "RUNNING", Phase.ACTIVE, nodes=("gpu1",), start=NOW, end=end)

    later = START + 10.0
    site.slurm.running = (job(1, "alice", later), job(2, "bob", START - 10.0), job(3, "tina", later, "sbatch"))
    site.service.slurm_view.silent = "look again"
    await site.service.slurm_view.look()
    await site.service.bookings.maintain(site.booker("root"), ["gpu1"], Period(START, START + HOUR), "New disks")
    found = await told(site)
    assert list(found) == ["alice"], "bob's session is over by then, and tina's job is no session"
    assert found["alice"] == (
        "Maintenance of gpu1 begins on Saturday 21 November at 12:00, and your session there may run longer than that. "
        "Save your work. On your home page you can move the session to another node, or stop it now with a refund of "
        "the GPU time that it used."
    )
    assert await told(site) == {}
    page = (await site.visitor("alice").get("mine")).body.decode()
    assert 'href="/hub/home">Move it or stop it</a>' in page
    site.service.policy = lambda: Policy(refunds=("node-failure",))  # type: ignore[assignment]
    assert "another node, or stop it now." in await site.visitor("alice").text("mine")


async def test_who_is_in_the_way_of_maintenance_is_mailed_the_way_home(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert address("hub:home") == "/hub/home"
    monkeypatch.setenv("JUPYTERHUB_BASE_URL", "/gpus/")
    assert address("hub:home") == "/gpus/hub/home"
    monkeypatch.setenv("JUPYTERHUB_PUBLIC_HUB_URL", "https://lab.org/gpus/hub/")
    assert address("hub:home") == "https://lab.org/gpus/hub/home"


async def test_bookings_are_mailed_under_a_subject_of_their_own(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[SentNotice, str]] = []

    async def send(some: list[tuple[SentNotice, str]]) -> None:
        sent.extend(some)

    monkeypatch.setattr(site.service.notices, "send", send)
    (one,) = await site.book("tina", "Class", START, need=CLASS)
    await told(site)
    await site.service.notices.wait_until_delivered()
    assert [(notice.user, link) for notice, link in sent] == [("tina", f"/services/reservations/bookings/{one.id}")]
    assert site.service.notices._subject == "Your booking"
