"""Companions of a run that come and go while it trains: asked for, looked after, and given back, beside the training.

Nobody waits for the hub here: one thread looks how companions stand, and each that is given back has one of its own,
for the hub may be down for a moment.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from carme_hub.training.conductor.companion_price import cost
from carme_hub.training.run.control import NotDone
from carme_hub.training.session.companions import Companion, Hub, NoHub, Refused, going, let_go
from carme_hub.training.session.step_broker import NoBroker

from .price import PATIENCE as QUICK
from .price import quoted, too_many, what
from .workers import Share, Workers

if TYPE_CHECKING:
    from carme_hub.training.session.step_broker import Broker

#: Seconds between two looks, between two tries to give one back, and for these; and for the hub to see that one which
#: does not run any more has ended, before it is given back; and for one to be seen that was asked for and not answered
#: for, since the hub may be about to open it.
LOOK, AGAIN, PATIENCE, UNSEEN, SEEN = 2.0, 2.0, 60.0, 60.0, 5.0


class Resize:
    """The companions of one run.

    Args:
        crew: of which this changes ``shares``, under ``lock``. name: of the run. key: of the run, that no other has.
        connect: returns the hub.

    Attributes:
        gpus, cpus: of each companion. virtual: whether its GPUs are a sandbox's make-believe ones.
    """

    def __init__(
        self,
        crew: Workers,
        lock: threading.RLock,
        broker: Broker,
        name: str,
        key: str,
        connect: Callable[[], Hub] = Hub.from_environ,
    ) -> None:
        self._crew, self._lock, self._broker = crew, lock, broker
        self._name, self._key, self._connect = name, key, connect
        self.gpus, self.cpus, self.virtual = 0, 1, False
        self._over = threading.Event()
        self._opening = threading.Lock()  # held while the hub is asked for one, and until that is among ``shares``
        self._asked_for = 0
        self._unanswered = 0.0  # when an answer was lost last, of one that the hub may have opened; 0 = none was
        self._looking: threading.Thread | None = None
        self._returning: dict[str, threading.Thread] = {}
        self._gone: dict[str, float] = {}  # companions that were lost, until the hub says why
        self._why: dict[str, str] = {}
        self._in_vain: list[str] = []  # why companions ended that waited

    def price(self, count: int, minutes: int = 0) -> str:
        """Return what so many more companions cost and when they start; "" for none. Nothing is asked for.

        Raises:
            NotDone: the hub would refuse them, or does not say what they cost.
        """
        if not count:
            return ""
        try:
            said = quoted(self._connect(), gpus=self.gpus, cpus=self.cpus, minutes=minutes, patience=QUICK)
        except NoHub as error:
            raise NotDone(str(error)) from error
        if said is None:
            why = f"The hub has not said within {QUICK:.0f} s what they cost"
            raise NotDone(f"{why}, so no GPUs were asked for. Try again in a moment.")
        if not said.allowed:
            raise NotDone(said.message)
        if more := too_many(said, count):
            raise NotDone(more)
        found = what(count, self.gpus, virtual=self.virtual)
        return f"{found}. {cost(said, count, virtual=self.virtual)}".strip()

    def open(self, count: int, minutes: int = 0, check: Callable[[], None] | None = None) -> str:
        """Ask for companions, one for each of ``count`` ranks; return what was said.

        Args:
            minutes: of each; 0 = as long as the session has. check: a hub that does not answer is asked again until
                this raises something; None = whoever wants them is told so.

        Raises:
            NotDone: the hub gave none, or the run is about to end.
        """
        opened: list[Companion] = []
        with self._opening:
            for _ in range(count):
                try:
                    opened.append(self._open(minutes, check))
                except (NoHub, Refused, NotDone) as error:
                    if not opened:
                        raise NotDone(str(error)) from error
                    return f"{len(opened)} of {count} asked for; no more: {error}"
        return f"{count} asked for: {opened[0].said or 'they join when they run.'}" if opened else ""

    def _open(self, minutes: int, check: Callable[[], None] | None) -> Companion:
        hub = self._connect()
        self._asked_for += 1
        key, before = f"{self._key}-{self._asked_for}", self._unanswered
        while True:
            if self._over.is_set():
                raise NotDone("The run is about to end.")
            try:
                opened = hub.open(nodes=1, gpus=self.gpus, cpus=self.cpus, minutes=minutes, name=self._name, key=key)
                break
            except NoHub:
                self._unanswered = time.monotonic()  # the next look finds what it may have opened
                self._look_on()
                if check is None:
                    raise
            check()
            time.sleep(AGAIN)
        self._unanswered = before  # with the same key it is the same one
        with self._lock:
            self._crew.shares[opened.id] = Share(opened.id, self._crew.free_number(), opened.said)
        self._look_on()
        return opened

    def _look_on(self) -> None:
        if self._looking is None:
            self._looking = threading.Thread(target=self._look, name="carme-companions", daemon=True)
            self._looking.start()

    def give_back(self, id: str) -> None:
        """Give one back, beside."""
        with self._lock:
            self._crew.shares.pop(id, None)
            if id not in self._returning:
                self._returning[id] = threading.Thread(target=self._give_back, args=(id,), daemon=True)
                self._returning[id].start()

    def lost(self, id: str) -> None:
        """Take notice that one does not run any more. It is not given back: how it ended is for the hub to find out."""
        with self._lock:
            self._crew.shares.pop(id, None)
            self._gone.setdefault(id, time.monotonic())

    def explained(self) -> dict[str, str]:
        """Return how lost companions ended, in half a sentence each; each is returned once."""
        with self._lock:
            found, self._why = self._why, {}
        return found

    def in_vain(self) -> list[str]:
        """Return how companions ended that nobody was in yet, in half a sentence each; each is returned once."""
        with self._lock:
            found, self._in_vain = self._in_vain, []
        return found

    def close(self) -> None:
        """Give all back, and return when the hub knows."""
        self._over.set()
        end = time.monotonic() + PATIENCE
        with self._opening:  # one that is being asked for now is given back too
            while self._unanswered and time.monotonic() < end:
                self._give_back_unanswered()
                if self._unanswered:
                    time.sleep(AGAIN)
        for id in [*self._crew.shares, *self._gone]:
            self.give_back(id)
        for thread in list(self._returning.values()):
            thread.join(PATIENCE)

    def _give_back(self, id: str) -> None:
        end = time.monotonic() + PATIENCE
        while True:
            try:
                self._connect().close(id)
                return
            except Refused:  # it has ended, or is not ours any more
                return
            except NoHub:
                if time.monotonic() > end:
                    let_go(id)
                    raise
                time.sleep(AGAIN)

    def _give_back_unanswered(self) -> None:
        """Give back what was opened and no answer told of; with ``_opening`` held, so that nothing is on its way."""
        try:
            found = going(self._connect(), self._name)
        except (NoHub, Refused):
            return  # it is asked again
        with self._lock:
            strays = [id for id in found if id not in {*self._crew.shares, *self._gone, *self._returning}]
        for id in strays:
            self.give_back(id)
        if strays or time.monotonic() > self._unanswered + SEEN:
            self._unanswered = 0.0

    def _look(self) -> None:
        while not self._over.wait(LOOK):
            with self._lock:
                known, gone = list(self._crew.shares), list(self._gone)
            if self._unanswered and self._opening.acquire(blocking=False):
                try:
                    self._give_back_unanswered()
                finally:
                    self._opening.release()
            if known or gone:
                try:
                    found = {each.id: each for each in self._connect().list()}
                except (NoHub, Refused):  # it is asked again; what it could not have seen yet is not unseen
                    with self._lock:
                        self._gone |= {id: time.monotonic() for id in gone if id in self._gone}
                    continue
                for id in known:
                    self._take(id, found.get(id))
                for id in gone:
                    self._explain(id, found.get(id))

    def _explain(self, id: str, found: Companion | None) -> None:
        """Keep why a lost one ended; one that the hub still sees is given back in the end (Slurm may suspend a job)."""
        over = found is None or found.state == "ended"
        if not over and time.monotonic() < self._gone[id] + UNSEEN:
            return
        with self._lock:
            self._gone.pop(id)
            if over and found is not None and found.said:
                self._why[id] = _half(found.said)
        if not over:
            self.give_back(id)

    def _take(self, id: str, found: Companion | None) -> None:
        """Take notice of how one stands."""
        share = self._crew.shares.get(id)
        if share is None:
            return
        if found is None or found.state == "ended" or (found.state == "ending" and share.number < 0):
            with self._lock:  # its worker is missed when its step ends
                if self._crew.shares.pop(id, None) is not None and share.number >= 0:  # nobody was in it yet
                    self._in_vain.append(_half(found.said) if found is not None and found.said else "")
            return
        if share.allocation is not None:
            if found.ends:  # somebody may have moved its end
                share.allocation = replace(share.allocation, ends=found.ends)
            return
        share.said = found.said
        if found.state == "running":
            with contextlib.suppress(NoBroker):  # Slurm says so a moment later
                share.allocation = self._broker.allocation(id)


def _half(said: str) -> str:
    """Return the first sentence of what the hub said, to be put into another."""
    first = said.partition(". ")[0].rstrip(".")
    return first[:1].lower() + first[1:]
