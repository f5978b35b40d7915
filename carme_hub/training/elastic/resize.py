"""The companions of an elastic run: they are requested, watched and given back while the run trains.

The training never waits for the hub: one thread polls the companions, and each one that is given back has a thread of
its own, since the hub may be down for a moment.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from carme_hub.training.conductor.companion_price import cost_text
from carme_hub.training.run.control import RequestRefused
from carme_hub.training.session.companions import Companion, Hub, NoHub, Refused, live_companions, release_by_file
from carme_hub.training.session.step_broker import NoBroker

from .price import QUOTE_TIMEOUT as QUOTE_TIMEOUT
from .price import companions_text, limit_message, request_quote
from .workers import WorkerCompanion, Workers

if TYPE_CHECKING:
    from carme_hub.training.session.step_broker import Broker

#: Seconds between two polls; between two attempts to give one back, and until these stop; for the hub to see that a
#: lost companion has ended, before it is given back; and for one to show up whose request got no answer, since the hub
#: may still be opening it.
POLL_INTERVAL, RETRY_INTERVAL, GIVE_BACK_TIMEOUT, END_SEEN_TIMEOUT, APPEAR_TIMEOUT = 2.0, 2.0, 60.0, 60.0, 5.0


class RunCompanions:
    """The companions of one run.

    Args:
        workers: this changes its ``companions``, under ``lock``. name: of the run. key: unique to the run.
        connect: returns the hub.

    Attributes:
        gpus, cpus: of each companion. virtual: whether its GPUs are virtual ones of a sandbox.
        stage: whether what the session copies to its node and from it is copied for each companion, too.
    """

    def __init__(
        self,
        workers: Workers,
        lock: threading.RLock,
        broker: Broker,
        name: str,
        key: str,
        connect: Callable[[], Hub] = Hub.from_environ,
    ) -> None:
        self._workers, self._lock, self._broker = workers, lock, broker
        self._name, self._key, self._connect = name, key, connect
        self.gpus, self.cpus, self.virtual, self.stage = 0, 1, False, False
        self._closing = threading.Event()
        self._opening = threading.Lock()  # held from a request to the hub until its companion is recorded
        self._request_count = 0
        self._lost_answer_at = 0.0  # when the last answer was lost; 0 = none was lost
        self._poller: threading.Thread | None = None
        self._give_backs: dict[str, threading.Thread] = {}
        self._lost_since: dict[str, float] = {}  # lost companions, until the hub explains them
        self._reasons: dict[str, str] = {}
        self._ended_unused: list[str] = []  # why pending companions ended

    def price(self, count: int, minutes: int = 0) -> str:
        """Describe the cost and the start of so many more companions; "" for none. This requests nothing.

        Raises:
            RequestRefused: the hub would refuse them, or does not quote a price.
        """
        if not count:
            return ""
        try:
            quote = request_quote(
                self._connect(), gpus=self.gpus, cpus=self.cpus, minutes=minutes, timeout=QUOTE_TIMEOUT
            )
        except NoHub as error:
            raise RequestRefused(str(error)) from error
        if quote is None:
            why = f"The hub did not quote a price within {QUOTE_TIMEOUT:.0f} s"
            raise RequestRefused(f"{why}, so no GPUs were requested. Try again in a moment.")
        if not quote.allowed:
            raise RequestRefused(quote.message)
        if more := limit_message(quote, count):
            raise RequestRefused(more)
        found = companions_text(count, self.gpus, virtual=self.virtual)
        return f"{found}. {cost_text(quote, count, virtual=self.virtual)}".strip()

    def open(self, count: int, minutes: int = 0, check: Callable[[], None] | None = None) -> str:
        """Request companions, one for each of ``count`` ranks; return a message.

        Args:
            minutes: of each; 0 = as long as the session. check: where the hub does not answer, the request is repeated
                until this raises an error; None = report it at once.

        Raises:
            RequestRefused: the hub granted none, or the run is ending.
        """
        opened: list[Companion] = []
        with self._opening:
            for _ in range(count):
                try:
                    opened.append(self._open(minutes, check))
                except (NoHub, Refused, RequestRefused) as error:
                    if not opened:
                        raise RequestRefused(str(error)) from error
                    return f"{len(opened)} of {count} requested; no more: {error}"
        return f"{count} requested: {opened[0].said or 'they join when they run.'}" if opened else ""

    def _open(self, minutes: int, check: Callable[[], None] | None) -> Companion:
        hub = self._connect()
        self._request_count += 1
        key, before = f"{self._key}-{self._request_count}", self._lost_answer_at
        while True:
            if self._closing.is_set():
                raise RequestRefused("The run is ending.")
            try:
                size: dict[str, Any] = {"nodes": 1, "gpus": self.gpus, "cpus": self.cpus, "minutes": minutes}
                opened = hub.open(**size, name=self._name, key=key, stage=self.stage)
                break
            except NoHub:
                self._lost_answer_at = time.monotonic()  # the next poll finds a companion that it may have opened
                self._start_polling()
                if check is None:
                    raise
            check()
            time.sleep(RETRY_INTERVAL)
        self._lost_answer_at = before  # the same key gives the same companion
        with self._lock:
            self._workers.companions[opened.id] = WorkerCompanion(opened.id, self._workers.free_number(), opened.said)
        self._start_polling()
        return opened

    def _start_polling(self) -> None:
        if self._poller is None:
            self._poller = threading.Thread(target=self._look, name="carme-companions", daemon=True)
            self._poller.start()

    def give_back(self, id: str) -> None:
        """Give a companion back, in a thread."""
        with self._lock:
            self._workers.companions.pop(id, None)
            if id not in self._give_backs:
                self._give_backs[id] = threading.Thread(target=self._give_back, args=(id,), daemon=True)
                self._give_backs[id].start()

    def mark_lost(self, id: str) -> None:
        """Record that a companion does not run any more; the hub will say how it ended, so it is not given back."""
        with self._lock:
            self._workers.companions.pop(id, None)
            self._lost_since.setdefault(id, time.monotonic())

    def explained(self) -> dict[str, str]:
        """Return how lost companions ended, as clauses; each is returned once."""
        with self._lock:
            found, self._reasons = self._reasons, {}
        return found

    def ended_unused(self) -> list[str]:
        """Return how companions ended before they had a worker, as clauses; each is returned once."""
        with self._lock:
            found, self._ended_unused = self._ended_unused, []
        return found

    def close(self) -> None:
        """Give all companions back, and return when the hub has confirmed it."""
        self._closing.set()
        end = time.monotonic() + GIVE_BACK_TIMEOUT
        with self._opening:  # a companion that is being requested is given back too
            while self._lost_answer_at and time.monotonic() < end:
                self._give_back_unanswered()
                if self._lost_answer_at:
                    time.sleep(RETRY_INTERVAL)
        for id in [*self._workers.companions, *self._lost_since]:
            self.give_back(id)
        for thread in list(self._give_backs.values()):
            thread.join(GIVE_BACK_TIMEOUT)

    def _give_back(self, id: str) -> None:
        end = time.monotonic() + GIVE_BACK_TIMEOUT
        while True:
            try:
                self._connect().close(id)
                return
            except Refused:  # it has ended, or belongs to another session
                return
            except NoHub:
                if time.monotonic() > end:
                    release_by_file(id)
                    raise
                time.sleep(RETRY_INTERVAL)

    def _give_back_unanswered(self) -> None:
        """Give back a companion whose answer was lost; ``_opening`` is held, so no request is pending."""
        try:
            found = live_companions(self._connect(), self._name)
        except (NoHub, Refused):
            return  # retried later
        with self._lock:
            strays = [id for id in found if id not in {*self._workers.companions, *self._lost_since, *self._give_backs}]
        for id in strays:
            self.give_back(id)
        if strays or time.monotonic() > self._lost_answer_at + APPEAR_TIMEOUT:
            self._lost_answer_at = 0.0

    def _look(self) -> None:
        while not self._closing.wait(POLL_INTERVAL):
            with self._lock:
                known, gone = list(self._workers.companions), list(self._lost_since)
            if self._lost_answer_at and self._opening.acquire(blocking=False):
                try:
                    self._give_back_unanswered()
                finally:
                    self._opening.release()
            if known or gone:
                try:
                    found = {each.id: each for each in self._connect().list()}
                except (NoHub, Refused):  # retried later; the time without an answer does not count
                    with self._lock:
                        self._lost_since |= {id: time.monotonic() for id in gone if id in self._lost_since}
                    continue
                for id in known:
                    self._update(id, found.get(id))
                for id in gone:
                    self._explain(id, found.get(id))

    def _explain(self, id: str, found: Companion | None) -> None:
        """Record why a lost companion ended; give it back where the hub still sees it (Slurm may suspend a job)."""
        over = found is None or found.state == "ended"
        if not over and time.monotonic() < self._lost_since[id] + END_SEEN_TIMEOUT:
            return
        with self._lock:
            self._lost_since.pop(id)
            if over and found is not None and found.said:
                self._reasons[id] = _first_clause(found.said)
        if not over:
            self.give_back(id)

    def _update(self, id: str, found: Companion | None) -> None:
        """Update a companion from the hub's answer."""
        companion = self._workers.companions.get(id)
        if companion is None:
            return
        if found is None or found.state == "ended" or (found.state == "ending" and companion.number < 0):
            with self._lock:  # its worker is removed when its step ends
                if self._workers.companions.pop(id, None) is not None and companion.number >= 0:  # it had no worker yet
                    self._ended_unused.append(_first_clause(found.said) if found is not None and found.said else "")
            return
        if companion.allocation is not None:
            if found.ends:  # its end may have changed
                companion.allocation = replace(companion.allocation, ends=found.ends)
            return
        companion.message = found.said
        if found.state == "running":
            with contextlib.suppress(NoBroker):  # Slurm reports it a moment later
                companion.allocation = self._broker.allocation(id)


def _first_clause(text: str) -> str:
    """Return the first sentence of the hub's message as a clause."""
    first = text.partition(". ")[0].rstrip(".")
    return first[:1].lower() + first[1:]
