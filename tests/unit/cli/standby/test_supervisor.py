"""What ``carme-hub standby`` does with a hub that ends, or that cannot be ended: forged hubs and leases."""

from __future__ import annotations

import logging
import time
from types import SimpleNamespace
from typing import Any

import pytest
from forged_leases import ForgedLeases

from carme_hub.cli.standby.command import StandbyApp
from carme_hub.cli.standby.supervisor import Supervisor
from carme_hub.cli.standby.tenure import Times
from carme_hub.errors import ConfigError
from carme_hub.fencing import NOT_ACTIVE, Ticket

TIMES = Times(0.6)


class ForgedHub:
    """A hub that ends with a status, or runs and cannot be killed."""

    def __init__(self, ticket: Ticket, status: int | None = None, *, in_disk_wait: bool = False) -> None:
        self.ticket, self._status, self._in_disk_wait = ticket, status, in_disk_wait
        self.killed = 0

    def ended(self) -> int | None:
        return self._status

    def silent(self, now: float) -> float | None:
        return 99.0 if self._in_disk_wait else 0.0

    def terminate(self) -> None:
        self._status = 0

    def kill(self) -> bool:
        self.killed += 1
        return not self._in_disk_wait


def supervisor(leases: ForgedLeases, start: Any, **more: Any) -> Supervisor:
    return Supervisor(leases, start, logging.getLogger("standby"), times=TIMES, hang=5.0, **more)


@pytest.fixture
def leases() -> ForgedLeases:
    return ForgedLeases(time.monotonic)


def test_a_hub_that_cannot_be_killed_keeps_no_other_host_from_the_lease_which_is_not_given_back(
    leases: ForgedLeases, caplog: pytest.LogCaptureFixture
) -> None:
    """It waits for a disk that does not answer: it never runs again, and the lease runs out by itself."""
    host = supervisor(leases, lambda ticket: ForgedHub(ticket, in_disk_wait=True))
    assert host.run() == 1
    assert "a disk does not answer" in caplog.text
    assert leases.row.holder, "a lease that is given back is free before it has run out"
    time.sleep(TIMES.lease + 0.1)
    assert leases.row.free, "nobody renews it any more"


def test_a_host_whose_hub_found_another_one_active_stands_by_again(leases: ForgedLeases) -> None:
    tokens: list[int] = []

    def start(ticket: Ticket) -> ForgedHub:
        tokens.append(ticket.token)
        return ForgedHub(ticket, NOT_ACTIVE if len(tokens) == 1 else 3)

    assert supervisor(leases, start).run() == 3
    assert tokens == [1, 2]


def test_systemds_watchdog_is_told_while_a_host_waits_and_while_its_hub_runs(leases: ForgedLeases) -> None:
    other = leases.acquire("other", "", 0.5, "", "")
    ticks: dict[bool, int] = {False: 0, True: 0}
    hubs: list[ForgedHub] = []

    def tick() -> None:
        ticks[bool(hubs)] += 1
        if ticks[True] == 3:
            host.ended.set()

    def start(ticket: Ticket) -> ForgedHub:
        hubs.append(ForgedHub(ticket))
        return hubs[-1]

    host = supervisor(leases, start, on_tick=tick)
    assert host.run() == 0
    assert ticks[False] >= 2
    assert hubs[0].ticket.token == other.token + 1
    assert hubs[0].killed


def test_a_hub_that_hangs_in_its_start_is_killed_too(leases: ForgedLeases, caplog: pytest.LogCaptureFixture) -> None:
    """systemd's watchdog sees only what runs the hub."""
    slow = 0.0
    hubs: list[ForgedHub] = []

    class Hub(ForgedHub):
        def silent(self, now: float) -> float | None:
            nonlocal slow
            slow += 300.0  # of the forged clock
            return None

    def start(ticket: Ticket) -> ForgedHub:
        hubs.append(Hub(ticket) if not hubs else ForgedHub(ticket, 4))
        return hubs[-1]

    leases = ForgedLeases(lambda: time.monotonic() + slow)
    host = Supervisor(
        leases,
        start,
        logging.getLogger("standby"),
        times=Times(3600.0),
        hang=5.0,
        now=lambda: time.monotonic() + slow,
    )
    assert host.run() == 4
    assert hubs[0].killed
    assert "its event loop has said nothing" in caplog.text


@pytest.mark.parametrize("is_free", [False, True], ids=["held", "free"])
def test_a_host_with_other_secrets_refuses_to_stand_by_and_never_takes_over(
    leases: ForgedLeases, *, is_free: bool
) -> None:
    ticket = leases.acquire("other", "hub-a", 3600, "secrets of hub-a", "").ticket
    if is_free:
        leases.release(ticket)
    host = supervisor(leases, ForgedHub, secrets=lambda: "others")
    with pytest.raises(ConfigError, match=r"not those of hub-a.*Copy the state folder.*--new-secrets"):
        host.run()
    assert leases.row.token == 1


def test_secrets_that_are_replaced_while_a_host_stands_by_are_seen(leases: ForgedLeases) -> None:
    leases.acquire("other", "hub-a", 3600, "secrets", "")
    asked: list[str] = []

    def secrets() -> str:
        asked.append("secrets" if len(asked) < 2 else "others")
        return asked[-1]

    with pytest.raises(ConfigError, match="not those of hub-a"):
        supervisor(leases, ForgedHub, secrets=secrets).run()
    assert asked == ["secrets", "secrets", "others"]


async def test_systemds_watchdog_is_told_while_the_first_lease_waits_for_a_hub_without_one() -> None:
    """It may wait for longer than systemd would."""
    told: list[bool] = []
    app: Any = StandbyApp()
    app._watchdog = SimpleNamespace(tell_in_time=lambda: told.append(True))
    await app._wait_for_unleased_hub(SimpleNamespace(read=lambda: None, unleased=lambda: "" if told else "ada"))
    assert told == [True]
