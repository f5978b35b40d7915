"""Two hubs are never active at once, whatever hosts, network and clocks do: random stories in forged time.

Hosts freeze and thaw at any point, crash, and lose the database; a request is on its way for any time, and so is its
answer. The hosts decide by ``Tenure``, as ``carme-hub standby`` does, and look at their clocks every tenth of a second
while they are not frozen. A hub writes in each of these looks, before anything can kill it.
"""

from __future__ import annotations

from collections.abc import Callable

from forged_leases import ForgedLeases
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from carme_hub.cli.standby.tenure import Tenure, Times

TIMES = Times(12.0)
TICK = 0.1
HOSTS = st.integers(0, 1)
#: Seconds for which a request or an answer is on its way.
ON_THE_WAY = st.sampled_from([0.0, 0.0, 0.5, 3.0, 8.9, 13.0, 40.0])


class Host:
    """One ``carme-hub standby`` and its hub. ``ahead``: of its clock, which starts at any number."""

    def __init__(self, leases: ForgedLeases, ahead: float) -> None:
        self.leases, self.ahead = leases, ahead
        self.frozen = False
        self.there = self.back = 0.0
        self.tenure: Tenure | None = None
        self.running = False
        self.tenures = 0
        self._next = 0.0
        #: What is on its way to the database and back, with the time of its arrival; it may belong to a former process.
        self.requests: list[tuple[float, Callable[[float], None]]] = []
        self.answers: list[tuple[float, Callable[[], None]]] = []
        self.waits = False

    def step(self, now: float) -> None:
        """Do what is due in a tick."""
        for due in [each for each in self.requests if each[0] <= now]:
            self.requests.remove(due)
            due[1](now)
        if self.frozen:
            return
        if self.running and self.tenure is not None:
            self.leases.write(self.tenure.ticket)
        for answer in [each for each in self.answers if each[0] <= now]:
            self.answers.remove(answer)
            answer[1]()
        mine = now + self.ahead
        if self.tenure is not None and self.tenure.over(mine):
            self.tenure, self.running = None, False
        if self.tenure is not None and not self.running:
            if not self.leases.take_fences(self.tenure.ticket):
                self.tenure.lose("another hub has taken over")
            self.running = not self.tenure.over(mine)
        if not self.waits and now >= self._next:
            self._next = now + (TIMES.poll if self.tenure is None else TIMES.renew)
            self._renew(self.tenure, now) if self.tenure is not None else self._acquire(now)

    def _acquire(self, now: float) -> None:
        self.tenures += 1
        asked, holder = now + self.ahead, f"tenure {self.tenures} of {self.ahead}"

        def request(at: float) -> None:
            lease = self.leases.acquire(holder, "", TIMES.lease, "", "")

            def answer() -> None:
                self.waits = False
                if lease.holder == holder:
                    self.tenure = Tenure(lease.ticket, TIMES, asked)

            self.answers.append((at + self.back, answer))

        self._send(now, request)

    def _renew(self, tenure: Tenure, now: float) -> None:
        asked = now + self.ahead

        def request(at: float) -> None:
            renewed = self.leases.renew(tenure.ticket)

            def answer() -> None:
                self.waits = False
                tenure.renewed(asked) if renewed else tenure.lose("another host has it")

            self.answers.append((at + self.back, answer))

        self._send(now, request)

    def _send(self, now: float, request: Callable[[float], None]) -> None:
        self.waits = True
        self.requests.append((now + self.there, request))

    def crash(self) -> None:
        """End everything here; what is on its way to the database still arrives there."""
        self.tenure, self.running, self.frozen, self.waits = None, False, False, False
        self.answers.clear()


class NeverTwo(RuleBasedStateMachine):
    """Two hosts, and one database, whose clock is not theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.leases = ForgedLeases(lambda: self.now + 1e9)
        self.hosts = [Host(self.leases, 0.0), Host(self.leases, 7e6)]

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0, 9.0, 12.0, 20.0]))
    def time_passes(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK)):
            self.now += TICK
            for host in self.hosts:
                host.step(self.now)
            self.one_hub_at_most_runs()

    @rule(number=HOSTS, there=ON_THE_WAY, back=ON_THE_WAY)
    def the_network_changes(self, number: int, there: float, back: float) -> None:
        self.hosts[number].there, self.hosts[number].back = there, back

    @rule(number=HOSTS)
    def a_host_freezes(self, number: int) -> None:
        self.hosts[number].frozen = True

    @rule(number=HOSTS)
    def a_host_thaws(self, number: int) -> None:
        self.hosts[number].frozen = False

    @rule(number=HOSTS)
    def a_host_crashes_and_starts_again(self, number: int) -> None:
        self.hosts[number].crash()

    def one_hub_at_most_runs(self) -> None:
        """Hold after each tick: a host that has just thawed has not looked yet, and only the database keeps it out."""
        assert sum(host.running and not host.frozen for host in self.hosts) <= 1

    @invariant()
    def no_write_of_a_former_hub_follows_one_of_the_next(self) -> None:
        assert self.leases.written == sorted(self.leases.written)


TestNeverTwo = NeverTwo.TestCase


def test_what_a_thawed_hub_writes_before_it_is_killed_is_refused() -> None:
    world = NeverTwo()
    world.time_passes(3.0)
    (active,) = (number for number, host in enumerate(world.hosts) if host.running)
    world.a_host_freezes(active)
    world.time_passes(20.0)
    assert world.hosts[1 - active].running
    refused = world.hosts[active].tenure
    assert refused is not None
    world.a_host_thaws(active)
    world.time_passes(0.1)
    assert not world.hosts[active].running
    assert set(world.leases.written) == {1, 2}
    assert not world.leases.write(refused.ticket)
    world.no_write_of_a_former_hub_follows_one_of_the_next()


def test_a_hub_ends_while_its_lease_cannot_be_taken_yet() -> None:
    now = 0.0
    leases = ForgedLeases(lambda: now)
    tenure = Tenure(leases.acquire("one", "", TIMES.lease, "", "").ticket, TIMES, asked=now)
    ended = 0.0
    while leases.acquire("two", "", TIMES.lease, "", "").holder != "two":
        now += TICK
        if not ended and tenure.over(now):
            ended = now
    assert abs(ended - 9.0) < 2 * TICK
    assert 12.0 <= now < 12.0 + 2 * TICK
