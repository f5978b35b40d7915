"""What the ledger's state machine does in each step: to the real ledger, and to plain sums beside it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from forged_site import Site
from hypothesis.stateful import RuleBasedStateMachine
from plain_facts import DAY, Gift, Held, Job, Wish, page_of
from plain_sums import PlainSums
from sqlalchemy import event

from carme_hub.accounting.admission import admit, preview
from carme_hub.accounting.grants import grant
from carme_hub.accounting.settlement import settle
from carme_hub.domain.cluster.jobs import JOB_NAME_PREFIX, Phase
from carme_hub.domain.cluster.resources import NO_GPUS, Gpus
from carme_hub.domain.ledger.usage import Usage
from carme_hub.domain.quotas.decision import Decision
from carme_hub.domain.quotas.rules import Person, Quota, QuotaRequest
from carme_hub.domain.sessions.session import SessionState
from carme_hub.store.engine import make_engine
from carme_hub.store.ledger.writes import LedgerStore

PEOPLE = (
    Person("ada", frozenset({"course"}), frozenset({"staff"})),
    Person("bob", frozenset({"course", "lab"})),
    Person("cyd", frozenset({"lab"}), frozenset({"staff"})),
)
MEMBERS = {
    name: frozenset(each.user for each in PEOPLE if name in each.groups | each.roles)
    for name in ("course", "lab", "staff")
}
ACCOUNTS = ("physics", "biology")


class Story(RuleBasedStateMachine):
    """One example: a database of its own, its jobs, and the sums. ``empty``: a database with nothing in it."""

    empty: Path

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.file = Path(self.folder.name) / "carme.sqlite"
        shutil.copy(self.empty, self.file)
        self.engine = make_engine(f"sqlite:///{self.file}")
        event.listen(self.engine, "connect", _without_waiting_for_the_disk)
        self.numbers = count(1)
        self.jobs: list[Job] = []
        self.waiting: list[str] = []  # sessions without a job

    def teardown(self) -> None:
        self.engine.dispose()
        self.folder.cleanup()

    def _set_up(self, rules: Sequence[Quota], zone: str, now: float) -> None:
        prices = {"a100": 1500, "t4": 500}  # one table for both
        self.site = Site(LedgerStore(self.engine), rules, now=now, prices=prices, zone=zone)
        self.site.members = {name: tuple(members) for name, members in MEMBERS.items()}
        self.context = self.site.ledger.context
        self.sums = PlainSums(list(rules), zone, MEMBERS, prices, now)

    def _borders(self) -> Iterator[float]:
        second = self.sums.second
        for window, days in (("day", 2), ("day", 2), ("week", 8), ("month", 32)):
            whole = range(second, second + days * DAY)
            page = page_of(window, second, self.sums.zone)
            low, high = 0, len(whole)
            while low < high:
                middle = (low + high) // 2
                if page_of(window, whole[middle], self.sums.zone) == page:
                    low = middle + 1
                else:
                    high = middle
            yield second + low
        for one in self.sums.rules:
            yield from (one.start, one.end) if one.window.value == "term" else ()
            if one.window.value == "rolling":
                yield from (edge + one.days * DAY for use in self.sums.uses.values() for edge in (use.start, use.end))
        yield from (gift.expires for gift in self.sums.gifts if gift.expires)
        yield from (held.at + DAY for held in self.sums.held.values())

    def _at(self, now: float) -> None:
        for job in self.jobs:
            if not job.end and job.start + job.limit <= now:
                self._ended(job, job.start + job.limit, "TIMEOUT")
        self.site.now = self.sums.now = now
        for held in self.sums.held.values():
            if held.over < 0:
                self._over(held)

    def _give(self, account: str, amount: int, later: int | None) -> None:
        key = f"g{next(self.numbers)}"
        expires = self.sums.second + 1 + later if later else 0
        grant(self.context, account, amount, key=key, actor="root", expires=expires, reason="course")
        self.sums.gifts.append(Gift(f"grant:{key}", account, amount, self.site.now, expires))

    def _admit(self, id: str, wish: Wish) -> Decision:
        return admit(self.context, id, wish.user, ask_of(wish), "gpu", "normal")

    def _is_largest(self, wish: Wish, decision: Decision, *, new: bool) -> Wish | None:
        """Assert that the largest request which a refusal names is granted, and one step larger is not."""
        most = self.sums.largest(wish)
        named = decision.largest
        assert (named and (named.gpus.count, named.seconds)) == (most and (most.gpus, most.seconds))
        if most is None or not new:
            return None
        longer = most._replace(seconds=min(wish.seconds, most.seconds // 900 * 900 + 900))
        wider = most._replace(gpus=most.gpus + 1) if most.gpus < wish.gpus else most
        asks = [ask_of(one) for one in (most, longer, wider)]
        granted = [each.granted for each in preview(self.context, wish.user, asks, "gpu", "normal")]
        assert granted == [True, longer == most, wider == most]
        return most

    def _watch(self, wish: Wish) -> set[str]:
        return {
            one.id
            for one in self.sums.rules
            if self.sums.in_force(one) and self.sums.subjects(one, wish.user, wish.account)
        }

    def _price(self, type: str) -> int:
        return self.site.prices[type]

    def _runs(self, id: str, *, usable: bool) -> None:
        held = self.sums.held[id]
        self.waiting.remove(id)
        job, held.usable = self._begin(held.user, held.account, held.type, held.gpus, held.seconds, id), usable
        state = SessionState.RUNNING if usable else SessionState.SUBMITTED
        self.site.session(id, job_id=job.id, started=self.site.now if usable else 0.0, state=state)

    def _begin(self, user: str, account: str, type: str, gpus: int, limit: int, session: str = "", id: int = 0) -> Job:
        job = Job(
            id or next(self.numbers), self.sums.second, user, account, type, gpus, self.sums.second, limit, session
        )
        self.jobs.append(job)
        return job

    def _ended(self, job: Job, end: int, state: str) -> None:
        job.end, job.shown, job.state = end, end, state
        if job.session:
            self.sums.held[job.session].over = -1.0  # the hub has yet to see it

    def _over(self, held: Held) -> None:
        held.over = self.site.now
        self.site.session(held.id, state=SessionState.ENDED, ended=self.site.now)

    def _settle(self) -> Any:
        known = [job for job in self.jobs if not job.lost and job.gpus]
        live = {job.id for job in known if not job.end}
        done = settle(self.context, [self._usage(job) for job in known], self.site.rows.values(), live=live)
        self.sums.settle(self.jobs)
        self.site.running = [self._usage(job) for job in known if not job.end]
        return done

    def _usage(self, job: Job) -> Usage:
        return Usage(
            job_id=job.id,
            shown_id=str(job.id),
            name=JOB_NAME_PREFIX + job.session if job.session else "train",
            user=job.user,
            account=job.account,
            partition="gpu",
            qos="normal",
            state=job.state,
            phase=Phase.TERMINAL if job.end else Phase.ACTIVE,
            submitted=float(job.submitted),
            start=float(job.start),
            end=float(job.shown),
            gpus=(Gpus(job.type, job.gpus),),
            time_limit=job.limit,
        )

    def _open(self) -> list[Held]:
        return [each for each in self.sums.held.values() if each.is_open and not each.over and each.has_row]

    def _running(self, session: str = "") -> list[Job]:
        return [each for each in self.jobs if not each.end and session in ("", each.session)]

    def _charged(self) -> list[Job]:
        """Return jobs with one incarnation that was charged as its record says, and about which nobody was asked."""
        asked = {key for _, key in self.sums.doubts.keys() | self.sums.decided}
        ids = [each.id for each in self.jobs]
        return [
            each
            for each in self.jobs
            if each.key in self.sums.uses and each.key not in asked and ids.count(each.id) == 1
        ]


def _without_waiting_for_the_disk(connection: Any, _record: Any) -> None:
    connection.execute("PRAGMA synchronous=OFF").close()


def ask_of(wish: Wish) -> QuotaRequest:
    return QuotaRequest(
        wish.account, Gpus(wish.type, wish.gpus) if wish.gpus else NO_GPUS, wish.seconds, already_held=wish.held
    )


def one_of(every: Any, which: int) -> Any:
    return list(every)[which % len(every)]
