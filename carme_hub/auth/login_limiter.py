"""Rate limit of logins: ten wrong passwords in five minutes, per user name and per address.

The authenticator calls it. An attempt counts from its start, so that a hundred at once do not all pass before the first
has failed, and it is not counted any more when the login succeeds. A refused attempt does not count: the next attempt
is allowed when the oldest one is five minutes old. Memory is bounded; when it is full, the key that was used least
recently is forgotten. To remove a name in this way, an attacker needs one address for every ten attempts.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from carme_hub.errors import Refused


class TooManyTries(Refused):
    """Too many failed logins; ``wait`` says for how many seconds."""

    reason = "too-many-tries"

    def __init__(self, wait: int) -> None:
        minutes = math.ceil(wait / 60)
        super().__init__(
            f"Too many failed logins. Try again in {minutes} minute{'s' if minutes != 1 else ''}. "
            "If these logins were not yours, tell the administrators."
        )
        self.wait = wait


@dataclass(frozen=True, slots=True)
class Attempt:
    """One login in progress: the keys for which it counts, and its start."""

    keys: tuple[str, ...]
    at: float


class LoginLimiter:
    """Counts the failed attempts of each key in a sliding window.

    Args:
        tries: failures that a key may have within ``window`` seconds; 0 switches the limiter off.
        max_keys: keys that are remembered at most.
    """

    def __init__(
        self,
        tries: int = 10,
        window: float = 300.0,
        *,
        max_keys: int = 20_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tries = tries
        self.window = window
        self.max_keys = max_keys
        self._clock = clock
        self._seen: OrderedDict[str, deque[float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def enter(self, *keys: str) -> Attempt:
        """Count an attempt for each key, or raise ``TooManyTries`` and count nothing."""
        now = self._clock()
        attempt = Attempt(tuple(dict.fromkeys(keys)), now)
        if self.tries <= 0:
            return attempt
        wait = max((self._wait(key, now) for key in attempt.keys), default=0.0)
        if wait > 0:
            raise TooManyTries(math.ceil(wait))
        for key in attempt.keys:
            self._seen.setdefault(key, deque()).append(now)
            self._seen.move_to_end(key)
        while len(self._seen) > self.max_keys:
            self._seen.popitem(last=False)
        return attempt

    def undo(self, attempt: Attempt) -> None:
        """Do not count an attempt: the login succeeded, or failed for a reason other than the password."""
        for key in attempt.keys:
            times = self._seen.get(key)
            if times is None:
                continue
            if attempt.at in times:
                times.remove(attempt.at)
            if not times:
                del self._seen[key]

    def _wait(self, key: str, now: float) -> float:
        """Return the seconds until the key has an attempt left; forget attempts that are older than the window."""
        times = self._seen.get(key)
        if times is None:
            return 0.0
        while times and times[0] <= now - self.window:
            times.popleft()
        if not times:
            del self._seen[key]
            return 0.0
        return times[0] + self.window - now if len(times) >= self.tries else 0.0
