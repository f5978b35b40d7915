"""The notices of an elastic run: each is shown as long as it is true, in the order in which they were said."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Hashable

#: The most notices at a time; older ones make room.
MOST = 4


class Notices:
    """Sentences about a run, by what they are about; several threads may use it.

    Args:
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.RLock()
        self._notices: dict[Hashable, tuple[str, float]] = {}

    def say(self, about: Hashable, text: str, seconds: float = math.inf) -> None:
        """Show a sentence in place of the last one about the same; an empty one takes that away.

        Args:
            seconds: after which it is not shown any more.
        """
        with self._lock:
            self._notices.pop(about, None)
            if text:
                self._notices[about] = (text, self._clock() + seconds)

    def lost(self, number: int, text: str, again: bool, starts: int) -> None:
        """Announce the loss of a rank, until it is dropped.

        Args:
            number: of the worker. text: what happened. again: whether it is started again.
            starts: how often it was started before it was given up, 0 = that is not the reason.
        """
        more = "it is started again, and the others continue"
        if not again:
            more = "the others continue" + (f"; it was started {starts} times, and is not again" if starts > 1 else "")
        self.say(("rank", number), f"{text}; {more}.")

    def companion_ended(self, id: str, rank: str) -> None:
        """Say that the companion of a rank has ended, for a reason that only the hub knows."""
        self.say(("companion", id), f"The companion of rank {rank} has ended.")

    def explain_companion(self, id: str, why: str) -> None:
        """Add the hub's reason to that, where it is still shown."""
        with self._lock:
            if found := self._notices.get(("companion", id)):
                self._notices["companion", id] = (f"{found[0].rstrip('.')}: {why}.", found[1])

    def drop(self, about: Hashable) -> None:
        """Take a sentence away: it is not true any more."""
        with self._lock:
            self._notices.pop(about, None)

    def text(self) -> str:
        """Return the newest sentences."""
        with self._lock:
            now = self._clock()
            self._notices = {about: each for about, each in self._notices.items() if each[1] > now}
            return " ".join(text for text, _ in list(self._notices.values())[-MOST:])
