"""Whatever is booked, started, ended and settled in whatever order: no budget is overrun, no promise is broken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from forged_site import ADA, DAY, GRANTED_ONLY, HOUR, Site, a100
from forged_slots import SlotLedger, slot
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rig.nightly import NIGHTLY

from carme_hub.accounting.admission import admit, extend, release, undo_extension
from carme_hub.accounting.credit_expiry import expire_all
from carme_hub.accounting.grants import grant
from carme_hub.accounting.settlement import settle
from carme_hub.accounting.slots.holds import Slot
from carme_hub.accounting.slots.settlement import ACCOUNTING_DELAY, used_inside
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import GPU_HOUR, Entry, Kind
from carme_hub.domain.ledger.usage import Usage
from carme_hub.domain.quotas.rules import Quota, SubjectKind, Window
from carme_hub.domain.sessions.session import SessionState
from carme_hub.store.ledger.writes import Filter

LIMIT = 20 * GPU_HOUR
EXAMPLES = 300 if NIGHTLY else 20
_numbers = count(1)
_pick = st.integers(0, 5)
_gpus = st.integers(1, 4)
_seconds = st.integers(60, 6 * HOUR)
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("grant"), st.integers(1, 12), st.integers(0, 48)),
        st.tuples(st.just("wait"), st.integers(1, 8 * HOUR)),
        st.tuples(st.just("go to"), _pick, st.floats(0, 0.9)),
        st.tuples(st.just("book"), st.integers(0, 30), _gpus, st.integers(1, 8)),
        st.tuples(st.just("book"), st.integers(0, 3), _gpus, st.integers(1, 8)),
        st.tuples(st.just("change"), _pick, st.integers(-2, 2), _gpus),
        st.tuples(st.just("cancel"), _pick),
        st.tuples(st.just("start"), _pick, _gpus, _seconds),
        st.tuples(st.just("start in"), _pick, _gpus, st.floats(0.1, 1.2)),
        st.tuples(st.just("start in"), _pick, _gpus, st.floats(0.1, 1)),
        st.tuples(st.just("extend"), _pick, _seconds, st.booleans()),
        st.tuples(st.just("end"), _pick, st.floats(0, 1)),
        st.tuples(st.just("give back"), _pick),
        st.tuples(st.just("end"), _pick, st.floats(0, 0.3)),
        st.tuples(st.just("level"), _pick),
        st.tuples(st.just("lapse"), _pick, _seconds),
        st.tuples(st.just("settle"), _pick),
    ),
    min_size=20,
    max_size=40,
)


@dataclass
class Running:
    """A session as the test knows it; ``within``: the slot that it was started in."""

    gpus: int
    began: float
    within: str
    extensions: int = 0


@dataclass
class Story:
    """One account, its slots and sessions."""

    site: Site
    account: str
    slots: dict[str, Slot] = field(default_factory=dict)
    open: dict[str, Running] = field(default_factory=dict)
    past: list[Usage] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.slot_ledger = SlotLedger(self.site)
        self.context = self.site.ledger.context

    def step(self, name: str, what: Sequence[Any]) -> None:
        now = self.site.now
        slots, sessions = sorted(self.slots), sorted(self.open)
        if name == "grant":
            expires = now + what[1] * HOUR if what[1] % 3 else 0
            key = f"k{next(_numbers)}"
            grant(
                self.context, self.account, what[0] * GPU_HOUR, key=key, actor="root", expires=expires, reason="course"
            )
        elif name == "wait":
            self.site.now += what[0]
        elif name == "go to" and slots:
            chosen = self.slots[slots[what[0] % len(slots)]]
            self.site.now = max(now, float(int(chosen.start + what[1] * (chosen.end - chosen.start))))
        elif name == "book":
            # Those over midnight count twice, and so are no matter of exact sums by day.
            start = (now // HOUR + 1 + what[0]) * HOUR
            start = min(start, (start // DAY + 1) * DAY - what[2] * HOUR)
            number = next(_numbers)
            found = slot(f"r{number}", start, what[2] * HOUR, what[1], account=self.account)
            found = replace(found, other_gpus=(Gpus("l4", 1 + number % 2),) if number % 3 == 0 else ())
            if start >= now and self.slot_ledger.hold(found).granted:
                self.slots[found.id] = found
        elif name == "change" and slots:
            before = self.slots[slots[what[0] % len(slots)]]
            also = (Gpus("l4", what[2]),) if what[2] % 2 else ()
            after = replace(before, end=before.end + what[1] * HOUR, gpus=Gpus("a100", what[2]), other_gpus=also)
            sensible = after.start < after.end <= (after.start // DAY + 1) * DAY and now < before.end
            if sensible and self.slot_ledger.change(after).granted:
                self.slots[after.id] = after
        elif name == "cancel" and slots:
            chosen = self.slots[slots[what[0] % len(slots)]]
            if now < chosen.start:
                assert self.slot_ledger.release_hold(self.slots.pop(chosen.id))
        elif name == "start":
            self._start("", what[1], what[2])
        elif name == "start in" and slots:
            chosen = self.slots[slots[what[0] % len(slots)]]
            rest = chosen.end - max(now, chosen.start)
            self._start(chosen.id, what[1], max(60, int(rest * what[2])))
        elif name == "extend" and sessions:
            id = sessions[what[0] % len(sessions)]
            with self.site.store.reading("lab") as reads:
                over = reads.open_holds([id])[id].end < now  # Slurm has ended it
            if not over and extend(self.context, id, what[1], ADA, None).granted and what[2]:
                assert undo_extension(self.context, id, "Slurm refused it")
        elif name == "end" and sessions:
            self._end(sessions[what[0] % len(sessions)], what[1])
        elif name == "give back" and sessions:
            id = sessions[what[0] % len(sessions)]
            assert release(self.context, id, "sbatch refused it", "carme-hub")
            del self.open[id]
        elif name == "level" and slots:
            chosen = self.slots[slots[what[0] % len(slots)]]
            inside = [id for id, each in self.open.items() if each.within == chosen.id]
            before_it = self.slot_ledger.held()[chosen.id]
            assert self.slot_ledger.lower_hold(chosen, *inside, booked=self._booked(chosen)) <= before_it
        elif name == "lapse" and slots:
            chosen = self.slots[slots[what[0] % len(slots)]]
            before_it = self.slot_ledger.held()[chosen.id]
            if self._booked(chosen) and now > chosen.start:
                self.slot_ledger.return_unusable(chosen, what[1])
            assert self.slot_ledger.held()[chosen.id] <= before_it
        elif name == "settle" and slots:
            self._settle(self.slots[slots[what[0] % len(slots)]])

    def finish(self) -> None:
        """End and settle all that is open; nothing is held then."""
        for id in sorted(self.open):
            self._end(id, 1)
            self.check()
        for chosen in sorted(self.slots.values(), key=lambda each: each.end):
            self.site.now = max(self.site.now, float(chosen.end))
            self._settle(chosen)
            self.check()
        assert (self.slots, self.slot_ledger.held()) == ({}, {})

    def check(self) -> None:
        """Assert that no sum of the entries is beyond what there is, and that a slot holds what it can need at most."""
        expire_all(self.context)
        with self.site.store.reading("lab") as reads:
            entries = reads.statement(Filter(account=self.account), 0, 10_000)
        assert sum(entry.amount for entry in entries) >= 0
        for day in {int(entry.end) // DAY for entry in entries if entry.end}:
            assert _taken(entries, float(day * DAY)) <= LIMIT
        for id, amount in self.slot_ledger.held().items():
            mine = self.slots[id]
            gpus = sum(each.count for each in (mine.gpus, *mine.other_gpus))
            assert 0 <= amount <= gpus * (mine.end - mine.start) * 1000

    def _start(self, within: str, gpus: int, seconds: int) -> None:
        id, now = f"s{next(_numbers)}", self.site.now
        held = self.slot_ledger.held().get(within, 0)
        granted = admit(self.context, id, ADA, a100(gpus, seconds, self.account), "", "", slot=within).granted
        if within:
            mine = self.slots[within]
            inside = mine.start <= now and now + seconds <= mine.end
            assert granted or not inside or gpus * seconds * 1000 > held
        if granted:
            self.open[id] = Running(gpus, now, within)
            self.site.session(id)
            self.site.session(id, job_id=next(_numbers), started=now, state=SessionState.RUNNING)

    def _end(self, id: str, part: float) -> None:
        with self.site.store.reading("lab") as reads:
            limit = reads.open_holds([id])[id].seconds
        mine = self.open.pop(id)
        length = int(limit * part)
        self.site.now = max(self.site.now, mine.began + length)
        self.site.session(id, state=SessionState.ENDED, ended=self.site.now)
        job = self.site.usage_of(id, self.site.rows[id].job_id, mine.began, mine.began + length, submitted=mine.began)
        gpus = (Gpus("a100", mine.gpus),)
        self.past.append(replace(job, account=self.account, gpus=gpus, reservation=mine.within))
        settle(self.context, self.past, self.site.rows.values())

    def _settle(self, chosen: Slot) -> None:
        now = self.site.now
        if now < chosen.start:
            return
        ended = int(min(now, chosen.end))
        if self._booked(chosen):
            self.site.now = max(now, float(ended + ACCOUNTING_DELAY))  # accounting has to know of all jobs in it
        during = Period(chosen.start, max(ended, chosen.start + 1))
        used = used_inside(self.past, [chosen.id], during)
        took = any(each.within == chosen.id for each in self.open.values())
        done = self.slot_ledger.settle(chosen, ended=ended, booked=self._booked(chosen), used=used)
        assert done or took
        if done:
            del self.slots[chosen.id]
            assert self.slot_ledger.settle(chosen, ended=ended, booked=self._booked(chosen), used=used)

    def _booked(self, chosen: Slot) -> bool:
        return int(chosen.id[1:]) % 2 == 0


def _taken(entries: Sequence[Entry], day: float) -> int:
    """Return what lies in a day: use by its part, holds whole where their time meets it."""
    charged = 0
    held: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.kind is Kind.CHARGE:
            length = entry.end - entry.start
            part = max(0, min(entry.end, day + DAY) - max(entry.start, day))
            charged -= int(entry.amount * part / length) if length else entry.amount * (day < entry.end <= day + DAY)
        elif entry.kind in (Kind.HOLD, Kind.RELEASE):
            held.setdefault(entry.session, []).append(entry)
    for mine in held.values():
        newest = max(mine, key=lambda each: each.id)  # of a slot it tells its time; a session's lie one after the other
        start, end = newest.start, newest.end
        if not newest.key.startswith("slot:"):
            start, end = min(each.start for each in mine), max(each.end for each in mine)
        charged -= sum(each.amount for each in mine) if start < day + DAY and end > day else 0
    return charged


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(steps=_steps)
def test_no_order_of_bookings_and_sessions_overruns_a_budget(site: Site, steps: list[tuple[Any, ...]]) -> None:
    site.quotas = (GRANTED_ONLY, Quota("day", SubjectKind.ACCOUNT, gpu_time=LIMIT, window=Window.DAY))
    site.now = (site.now // DAY + 100) * DAY  # credits of the examples before are forgotten
    site.rows.clear()
    story = Story(site, f"account{next(_numbers)}")
    story.step("grant", (24, 0))
    for name, *what in steps:
        site.now += 1
        story.step(name, what)
        story.check()
    story.finish()
