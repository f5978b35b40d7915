"""Whatever people, Slurm and the clock do in whatever order: the ledger and its rules agree with plain sums."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test
from plain_facts import DAY, Gift, Held, Moment, Wish
from policies_by_chance import CLOCKS, policies
from rig.nightly import NIGHTLY
from story_by_chance import ACCOUNTS, PEOPLE, Story, one_of

from carme_hub.accounting.admission import extend, quota_status, release, undo_extension
from carme_hub.accounting.anomalies.decisions import decide_anomaly
from carme_hub.accounting.credit_expiry import expire_all
from carme_hub.accounting.grants import NotEnoughLeft, correct, transfer
from carme_hub.accounting.reconciliation import reconcile
from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.domain.quotas.rules import Person
from carme_hub.domain.sessions.session import SessionState
from carme_hub.store.engine import CarmeStore
from carme_hub.store.ledger.sums import differences
from carme_hub.store.ledger.writes import Anomaly

JOB_ENDS = ("COMPLETED", "COMPLETED", "FAILED", "NODE_FAIL", "PREEMPTED")
people, accounts = st.sampled_from(PEOPLE), st.sampled_from(ACCOUNTS)
fates = st.sampled_from(("runs", "runs", "runs", "waits", "is lost"))
types, counts = st.sampled_from(("a100", "t4")), st.integers(0, 4)
hours = st.integers(1, 12).map(lambda n: n * 3600)
times = st.integers(1, 8).map(lambda n: 900 * n) | st.integers(1, 9000) | st.sampled_from((DAY // 2, 2 * DAY))
amounts = st.integers(1, 12).map(lambda n: n * GPU_HOUR) | st.integers(1, 5 * GPU_HOUR)
some = st.integers(0, 10**6)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with our schema and nothing in it."""
    file = tmp_path_factory.mktemp("ledger") / "empty.sqlite"
    engine = CarmeStore(url=f"sqlite:///{file}").open()
    engine.dispose()  # the last connection that closes writes everything into the file
    return file


class Everybody(Story):
    """People, Slurm and the clock, each doing to the ledger what they do to the sums."""

    @initialize(drawn=policies(), clock=st.sampled_from(CLOCKS), later=st.integers(0, 30 * 3600))
    def begin(self, drawn: Any, clock: tuple[str, float], later: int) -> None:
        zone, first = clock
        rules = drawn(first)
        self._set_up(rules, zone, first + later)
        for account in ACCOUNTS if any(one.needs_grant for one in rules) else ():
            self._give(account, 100 * GPU_HOUR, None)

    # -- the clock ----------------------------------------------------------------------------------------------------

    @rule(quarters=st.integers(1, 4 * 4000), looks=st.booleans())
    def time_goes_by(self, quarters: int, looks: bool) -> None:
        self._at(self.site.now + quarters / 4)
        if looks:
            expire_all(self.context)
            self.sums.expire(ACCOUNTS)

    @rule(which=some, beside=st.sampled_from((-1, -0.25, 0, 0.25, 1)), looks=st.booleans())
    def time_goes_on_to_a_border(self, which: int, beside: float, looks: bool) -> None:
        borders = sorted(at for at in self._borders() if at + beside > self.site.now)
        self._at(one_of(borders or [self.site.now + 5], which) + beside)
        if looks:
            self._settle()

    @rule(type=types, price=st.sampled_from((0, 500, 1000, 2500)))
    def a_price_changes(self, type: str, price: int) -> None:
        self.site.prices[type] = price  # the sums look at the same table

    # -- people -------------------------------------------------------------------------------------------------------

    @rule(account=accounts, amount=amounts, later=st.none() | st.integers(1, 3 * DAY))
    def is_granted(self, account: str, amount: int, later: int | None) -> None:
        self._give(account, amount, later)

    @rule(source=accounts, amount=amounts, over=st.sampled_from((None, 0, 1)))
    def moves(self, source: str, amount: int, over: int | None) -> None:
        target = next(name for name in ACCOUNTS if name != source)
        taken = dict(self.sums.taken)
        self.sums.expire([source])
        most = self.sums.movable(source)
        amount = amount if over is None else max(1, most + over)
        key = f"t{next(self.numbers)}"
        if amount > most:
            with pytest.raises(NotEnoughLeft):
                transfer(self.context, source, target, amount, key=key, actor="root")
            self.sums.taken = taken  # nothing at all was written
            return
        for _ in range(2):
            transfer(self.context, source, target, amount, key=key, actor="root")
        self.sums.gifts.append(Gift(f"{key}:out", source, -amount, self.site.now, moved=True))
        self.sums.gifts.append(Gift(f"{key}:in", target, amount, self.site.now))

    @rule(account=accounts, person=people, amount=amounts, less=st.booleans(), ago=st.none() | st.integers(0, 3 * DAY))
    def is_put_right(self, account: str, person: Person, amount: int, less: bool, ago: int | None) -> None:
        amount, moment = -amount if less else amount, 0 if ago is None else self.sums.second - ago
        key = f"c{next(self.numbers)}"
        correct(
            self.context, account, amount, key=key, actor="root", reason="odd", user=person.user, used_at=float(moment)
        )
        if moment:
            self.sums.window_moments.append(Moment(person.user, account, moment, -amount))
        else:
            self.sums.gifts.append(Gift(key, account, amount, self.site.now))

    @rule(person=people, account=accounts, type=types, gpus=counts, seconds=times, fate=fates, takes_less=st.booleans())
    def starts(
        self, person: Person, account: str, type: str, gpus: int, seconds: int, fate: str, takes_less: bool
    ) -> None:
        self._starts(person, account, type, gpus, seconds, fate, takes_less)

    @rule(person=people, account=accounts, type=types, seconds=hours)
    def starts_a_small_one(self, person: Person, account: str, type: str, seconds: int) -> None:
        self._starts(person, account, type, 1, seconds, "runs", takes_less=True)

    def _starts(
        self, person: Person, account: str, type: str, gpus: int, seconds: int, fate: str, takes_less: bool
    ) -> None:
        wish = Wish(person, account, type if gpus else "", gpus, seconds, self._price(type) if gpus else 1000)
        self.sums.expire([account])
        broken = self.sums.broken(wish)
        id = f"s{next(self.numbers)}"
        decision = self._admit(id, wish)
        assert {(each.quota, each.reason) for each in decision.refusals} == broken
        assert decision.qos == self.sums.soft_qos(wish)
        if broken:
            less = self._is_largest(wish, decision, new=True)
            if less is None or not takes_less:
                return
            wish = less
            assert self._admit(id, wish).granted, "the largest that was named is refused"
        self.sums.held[id] = Held(
            id, person.user, account, wish.type, wish.gpus, wish.factor, self.site.now, wish.seconds, self._watch(wish)
        )
        assert self._admit(id, wish).granted, "the same session, asked for again"
        if fate == "is lost":  # the hub died before it wrote the session's row
            self.sums.held[id].has_row = False
            return
        self.site.session(id, person.user)
        self.waiting.append(id)
        if fate == "runs":
            self._runs(id, usable=True)

    @precondition(lambda self: self._open())
    @rule(which=some, seconds=times, slurm_refuses=st.booleans())
    def asks_for_more_time(self, which: int, seconds: int, slurm_refuses: bool) -> None:
        held = one_of(self._open(), which)
        person = next(each for each in PEOPLE if each.user == held.user)
        wish = Wish(person, held.account, held.type, held.gpus, seconds, held.factor, held.seconds)
        self.sums.expire([held.account])
        broken = self.sums.broken(wish)
        decision = extend(self.context, held.id, seconds, person, None)
        assert {(each.quota, each.reason) for each in decision.refusals} == broken
        if broken:
            self._is_largest(wish, decision, new=False)
        elif slurm_refuses:
            assert undo_extension(self.context, held.id, "Slurm refused it")
            assert not undo_extension(self.context, held.id, "Slurm refused it")
        else:
            held.watched &= self._watch(wish)
            held.seconds += seconds
            for job in self._running(held.id):
                job.limit += seconds

    # -- Slurm --------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.waiting)
    @rule(which=some, what=st.sampled_from(("runs", "fails", "gives back", "is closed")))
    def what_waited_goes_on(self, which: int, what: str) -> None:
        id = one_of(self.waiting, which)
        if what in ("runs", "fails"):
            self._runs(id, usable=what == "runs")
            return
        self.waiting.remove(id)
        self.site.session(id, state=SessionState.ENDED, ended=self.site.now)
        self.sums.held[id].over = self.site.now
        if what == "gives back":
            assert release(self.context, id, "sbatch refused it", "carme-hub")
            self.sums.held[id].is_open = False

    @rule(person=people, account=accounts, type=types, gpus=st.integers(1, 3), seconds=times)
    def a_job_starts_outside(self, person: Person, account: str, type: str, gpus: int, seconds: int) -> None:
        self._begin(person.user, account, type, gpus, seconds)

    @rule(person=people, account=accounts, type=types, which=some, before=st.integers(0, 3), after=st.integers(0, 3))
    def a_job_runs_over_a_border(
        self, person: Person, account: str, type: str, which: int, before: int, after: int
    ) -> None:
        borders = sorted({int(at) for at in self._borders() if at > self.site.now + before})
        border = one_of(borders, which) if borders else self.sums.second + before
        self._at(max(self.site.now, float(border - before)))
        job = self._begin(person.user, account, type, 1, DAY)
        self._at(float(border + after))
        self._ended(job, self.sums.second, "COMPLETED")
        self._settle()

    @precondition(lambda self: self._running())
    @rule(
        which=some,
        state=st.sampled_from(JOB_ENDS),
        record=st.sampled_from(("right", "right", "right", "right", "negative", "lost")),
        looks=st.booleans(),
    )
    def a_job_ends(self, which: int, state: str, record: str, looks: bool) -> None:
        job = one_of(self._running(), which)
        self._ended(job, self.sums.second, state)
        if record == "negative":
            job.shown = job.start - 30
        elif record == "lost" and job.session and len([each for each in self.jobs if each.id == job.id]) == 1:
            job.lost = True
        if job.session:
            self._over(self.sums.held[job.session])
        if looks:
            self._settle()

    @precondition(lambda self: any(each.session for each in self._running()))
    @rule(which=some, state=st.sampled_from(("REQUEUED", "NODE_FAIL", "PREEMPTED")))
    def a_job_is_begun_again(self, which: int, state: str) -> None:
        job = one_of([each for each in self._running() if each.session], which)
        if not self.sums.held[job.session].usable:
            return
        self._at(self.site.now + 1)
        if not job.end:
            self._ended(job, self.sums.second, state)
            self.sums.held[job.session].over = 0.0
            self._begin(job.user, job.account, job.type, job.gpus, job.limit, job.session, job.id)

    @precondition(lambda self: self._charged())
    @rule(which=some, seconds=some)
    def a_record_changes(self, which: int, seconds: int) -> None:
        job = one_of(self._charged(), which)
        job.shown = job.start + seconds % (self.sums.second - job.start + 1)

    # -- the service --------------------------------------------------------------------------------------------------

    @rule()
    def is_settled(self) -> None:
        self._settle()
        records = [self._usage(job) for job in self.jobs if not job.lost and job.gpus]
        assert not self._settle(), "a second run writes nothing"
        report = reconcile(self.context, records, 0, self.site.now + 1)
        assert (report.missing, report.extra, report.changed, report.difference) == ((), (), (), 0)
        assert len(report.waiting) == len([kind for kind, _ in self.sums.doubts if kind != "missing"])

    @precondition(lambda self: self.sums.doubts)
    @rule(which=some, seconds=st.none() | some)
    def a_person_decides(self, which: int, seconds: int | None) -> None:
        with self.context.store.reading("lab") as reads:
            waiting = {
                (
                    each.kind,
                    each.seen["session"] if each.kind == "missing" else (each.job_id, int(each.submitted)),
                ): each
                for each in reads.anomalies()
            }
        assert waiting.keys() == self.sums.doubts.keys()
        doubt = kind, key = one_of(sorted(waiting, key=str), which)
        factor = self.sums.doubts.pop(doubt)
        self.sums.decided.add(doubt)
        if kind == "missing" or seconds is None:
            decide_anomaly(self.context, waiting[doubt].id, "root", "nobody knows", None)
            return
        job = next(each for each in self.jobs if each.key == key)
        seconds %= self.sums.second - job.start + 1
        decide_anomaly(self.context, waiting[doubt].id, "root", "a clock stepped", seconds)
        self.sums.decide(kind, job, factor, seconds)

    # -- what holds after each step -----------------------------------------------------------------------------------

    @invariant()
    def balances_are_sums(self) -> None:
        if not hasattr(self, "sums"):
            return
        database = sqlite3.connect(self.file)
        sums = dict(database.execute("select account, sum(amount) from ledger group by account"))
        charged = list(database.execute("select job_id, submitted, -amount from ledger where kind = 'charge'"))
        database.close()
        with self.context.store.reading("lab") as reads:
            found = reads.balances(ACCOUNTS)
        with self.engine.connect() as connection:
            assert differences(connection) == [], "what is kept is not what the entries come to"
        for name, balance in found.items():
            assert (balance.granted, balance.used, balance.held) == self.sums.balance(name), name
            assert balance.left == sums.get(name, 0)
        # Every second is charged once.
        assert sorted(charged) == sorted(
            (*key, use.rate * (use.end - use.start)) for key, use in self.sums.uses.items()
        )
        assert not self.sums.overrun()

    @invariant()
    def what_was_taken_is_what_plain_sums_say(self) -> None:
        if not hasattr(self, "sums"):
            return
        person = PEOPLE[next(self.numbers) % len(PEOPLE)]
        for limit in quota_status(self.context, person, ACCOUNTS).limits:
            one = limit.rule.quota
            if self.sums.in_force(one):
                [(account, users)] = {
                    (account, users)
                    for name in ACCOUNTS
                    for subject, account, users in self.sums.subjects(one, person, name)
                    if subject == limit.rule.subject
                }
                held = sum(each.amount for each in self.sums.open(account, users))
                assert (limit.taken.used, limit.taken.held) == (self.sums.used(one, account, users), held), one


def _about(found: Anomaly) -> Any:
    return found.seen["session"] if found.kind == "missing" else (found.job_id, found.submitted)


def test_the_ledger_and_its_rules_agree_with_plain_sums_whatever_happens(empty: Path) -> None:
    Everybody.empty = empty
    # To make a story short takes minutes, so only the nightly run does it.
    phases = [each for each in Phase if NIGHTLY or each is not Phase.shrink]
    few = settings(max_examples=500 if NIGHTLY else 20, stateful_step_count=50, phases=phases)
    run_state_machine_as_test(Everybody, settings=few)
