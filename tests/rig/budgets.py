"""Invariant 3: holds plus used never exceed the budget; every running session has a hold. Read without our code.

The budgets are those of the policy file as it is now: GPU time of users and accounts over days, weeks, months, the last
N days or in total, and accounts that need grants. It does not check rules of groups and roles (the file does not have
their members), nor soft limits, which may be exceeded, nor terms.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import yaml

GPU_HOUR = 3_600_000

#: One statement, so one snapshot of the database. Holds are summed for each session: a release of more than was held
#: must not add to the budget. Use that began before the window counts with its part.
_TAKEN = """
SELECT whose, SUM(used), SUM(held) FROM (
  SELECT {whose} AS whose, 0 AS used, MAX(0, -SUM(amount)) AS held
  FROM ledger WHERE kind IN ('hold', 'release') GROUP BY {whose}, account, session
  UNION ALL
  SELECT {whose}, CASE WHEN start >= :since OR start = "end" THEN -amount
                       ELSE -amount / ("end" - start) * ("end" - :since) END, 0
  FROM ledger WHERE kind IN ('charge', 'correction') AND "end" > :since
) GROUP BY whose
"""
_GRANTED = """
SELECT account, SUM(amount) FROM ledger
WHERE kind = 'grant' OR (kind = 'correction' AND "end" = 0) GROUP BY account
"""
#: Open sessions with GPUs and a job, but without a hold.
_UNHELD = """
SELECT id FROM session
WHERE state != 'ended' AND job_id > 0 AND json_extract(request, '$.gpus.count') > 0 AND id NOT IN (
  SELECT session FROM ledger WHERE kind IN ('hold', 'release') GROUP BY session HAVING SUM(amount) < 0
)
"""


@dataclass(frozen=True)
class Budget:
    """One finite budget, in milli-GPU-seconds: its owner, and how much of it is used and held."""

    about: str
    limit: int
    used: int
    held: int

    @property
    def exceeded(self) -> bool:
        """Whether the sum of used and held is over the limit."""
        return self.used + self.held > self.limit

    def __str__(self) -> str:
        used, held, limit = (f"{each / GPU_HOUR:.4f}" for each in (self.used, self.held, self.limit))
        return f"{used} GPU-hours used and {held} held of {limit}"


@dataclass(frozen=True)
class BudgetReport:
    """The budgets as in the database, and the ids of open sessions with GPUs but without a hold."""

    budgets: tuple[Budget, ...]
    unheld: frozenset[str]


def budgets(folder: Path, now: datetime) -> BudgetReport | None:
    """Return the state of every budget; None when the policy or the database does not answer.

    Args:
        folder: of the hub's private files. now: a time with a zone.
    """
    policy = _policy(folder / "policy.yaml")
    if policy is None:
        return None
    try:
        connection = sqlite3.connect(f"file:{folder / 'carme-hub.sqlite'}?mode=ro", uri=True, timeout=2)
    except sqlite3.Error:
        return None
    try:
        zone = ZoneInfo(policy.get("zone", "UTC"))
        found = tuple(each for rule in policy["quotas"] for each in _of_rule(connection, rule, now.astimezone(zone)))
        return BudgetReport(found, frozenset(row[0] for row in connection.execute(_UNHELD)))
    except sqlite3.Error:
        return None
    finally:
        connection.close()


def _policy(file: Path) -> Mapping[str, Any] | None:
    """Return the policy, None where there is none; the file is missing, and then empty, while it is replaced."""
    for _ in range(20):
        with contextlib.suppress(OSError, yaml.YAMLError):
            policy = yaml.safe_load(file.read_text())
            if isinstance(policy, dict):
                return policy
        time.sleep(0.05)
    return None


def _of_rule(connection: sqlite3.Connection, rule: Mapping[str, Any], now: datetime) -> Iterator[Budget]:
    who = next((who for who in ("user", "account") if who in rule), None)
    if who is None or rule.get("soft"):
        return
    taken, name = _TAKEN.format(whose=f'"{who}"'), rule[who]
    if "gpu_time" in rule and rule["window"] != "term":
        for whose, used, held in connection.execute(taken, {"since": _since(rule, now)}):
            if name in ("*", whose):
                yield Budget(f"rule {rule['id']}, {who} {whose}", _amount(rule["gpu_time"]), used, held)
    if rule.get("needs_grant") and who == "account":
        granted: dict[str, int] = dict(connection.execute(_GRANTED))
        for whose, used, held in connection.execute(taken, {"since": 0}):
            if name in ("*", whose):
                yield Budget(f"balance of account {whose}", granted.get(whose, 0), used, held)


def _since(rule: Mapping[str, Any], now: datetime) -> int:
    """Return the start of a window, in epoch seconds; nothing is used after now, so its end does not matter."""
    day = now.replace(hour=0, minute=0, second=0, microsecond=0)
    match rule["window"]:
        case "total":
            return 0
        case "rolling":
            return int(now.timestamp()) - 86400 * int(rule["days"])
        case "week":
            day -= timedelta(days=now.weekday())
        case "month":
            day = day.replace(day=1)
    return int(day.timestamp())


def _amount(said: float | str) -> int:
    """Return milli-GPU-seconds of hours as a number, or of a text like "90 min"."""
    if not isinstance(said, str):
        return round(said * GPU_HOUR)
    found = re.fullmatch(r"(\d+) ?(h|min|s)", said)
    assert found, f"the oracle cannot parse {said!r}; write hours as a number, or minutes"
    return int(found[1]) * {"h": GPU_HOUR, "min": 60_000, "s": 1000}[found[2]]
