"""What plain sums are about: sessions, jobs, what was charged and given. No code of the product is used here.

Amounts are milli-GPU-seconds, times UTC epoch seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

QUARTER, DAY, GRACE, UNWRITTEN_TIMEOUT, RECHECK_PERIOD = 900, 86_400, 600, 120, 90 * 86_400


@lru_cache(maxsize=200_000)
def page_of(window: str, second: int, zone: str) -> int:
    """Return the number of the day, week or month in which a second lies, as a calendar on the wall has it."""
    day = datetime.fromtimestamp(second, ZoneInfo(zone)).date()
    match window:
        case "day":
            return day.toordinal()
        case "week":
            return (day.toordinal() - 1) // 7  # the first of January of the year 1 was a Monday
        case _:
            return day.year * 12 + day.month


class Wish(NamedTuple):
    """What is asked; ``held``: seconds that the session has already."""

    user: Any
    account: str
    type: str
    gpus: int
    seconds: int
    factor: int
    held: int = 0

    @property
    def cost(self) -> int:
        return self.gpus * self.seconds * self.factor


@dataclass
class Held:
    """One session that was admitted, and what it holds while it is open.

    ``watched``: rules that were in force whenever it held something. ``over``: when it ended.
    """

    id: str
    user: str
    account: str
    type: str
    gpus: int
    factor: int
    at: float
    seconds: int
    watched: set[str]
    is_open: bool = True
    over: float = 0.0
    usable: bool = True
    has_row: bool = True

    @property
    def amount(self) -> int:
        return self.gpus * self.seconds * self.factor


@dataclass
class Job:
    """One incarnation as Slurm knows it. ``shown``: the end that accounting tells. ``lost``: accounting forgot it."""

    id: int
    submitted: int
    user: str
    account: str
    type: str
    gpus: int
    start: int
    limit: int
    session: str = ""
    end: int = 0
    shown: int = 0
    state: str = "RUNNING"
    lost: bool = False

    @property
    def key(self) -> tuple[int, int]:
        return self.id, self.submitted


@dataclass
class Use:
    """A stretch of time that was charged; a refunded one counts nowhere."""

    user: str
    account: str
    start: int
    end: int
    rate: int
    session: str = ""
    refunded: bool = False


class Moment(NamedTuple):
    """Use that was corrected by so much (more is above zero), at one moment."""

    user: str
    account: str
    at: int
    amount: int
    session: str = ""


class Gift(NamedTuple):
    """What gives an account GPU time, or takes it away below zero; ``moved``: it went to another account."""

    key: str
    account: str
    amount: int
    at: float
    expires: int = 0
    moved: bool = False
