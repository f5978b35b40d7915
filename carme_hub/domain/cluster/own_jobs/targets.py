"""A job as users name it: ``9``, or of a job array ``9_3`` and ``9_[3-5,8]``. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from carme_hub.domain.cluster.jobs import Job, Phase

#: Slurm's largest MaxArraySize, and more characters than anybody types into a list of tasks.
MOST_TASKS, LONGEST = 4_000_001, 200
#: Tasks of one list that are joined with others.
MOST_JOINED = 100_000
_TARGET = re.compile(r"([1-9]\d{0,9})(?:_(?:(\d{1,7})|\[([\d,:-]+)\]))?", re.ASCII)
_TASKS = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Target:
    """What an act is for.

    Attributes:
        number: of the job, or of the whole array. tasks: of the array, as Slurm writes them; "" = all.
    """

    number: int
    tasks: str = ""

    def __str__(self) -> str:
        """Return it as Slurm's commands take it."""
        if not self.tasks:
            return str(self.number)
        return f"{self.number}_{self.tasks}" if self.tasks.isdigit() else f"{self.number}_[{self.tasks}]"

    def meets(self, job: Job) -> bool:
        """Return whether a job in the queue is this one, or has at least one of its tasks."""
        if (job.array or job.id) != self.number:
            return False
        if not self.tasks:
            return True
        return bool(job.array) and overlap(self.tasks, job.tasks)


def target_of(text: str) -> Target | None:
    """Parse a target; None if it is none."""
    found = _TARGET.fullmatch(text.strip()) if len(text) <= LONGEST else None
    if found is None:
        return None
    tasks = found[2] or found[3] or ""
    if tasks and not is_task_list(tasks):
        return None
    return Target(int(found[1]), str(int(tasks)) if tasks.isdigit() else tasks)


def is_task_list(text: str) -> bool:
    """Return whether a text is a list of tasks: ``3``, ``3-5,8``, ``0-98:2``."""
    parts = text.split(",")
    return len(text) <= LONGEST and all(_TASKS.fullmatch(part) for part in parts) and all(_ranges(text))


def live(target: Target, jobs: Iterable[Job]) -> list[Job]:
    """Return those of a user's jobs that an act on the target is about, without those that have ended."""
    return [job for job in jobs if job.phase is not Phase.TERMINAL and target.meets(job)]


def overlap(some: str, others: str) -> bool:
    """Return whether two lists of tasks have one in common; an unreadable part, such as ``...``, is left out."""
    theirs = list(_ranges(others))
    return any(_common(one, other) for one in _ranges(some) for other in theirs)


def count_tasks(tasks: str) -> int:
    """Return how many tasks a list of Slurm's has: ``1,4-7%2`` has five, ``0-9:3`` four; 1 where it cannot be read."""
    return max(1, sum(len(each) for each in _ranges(tasks)))


def joined(lists: Iterable[str]) -> str:
    """Return several lists of tasks as one, with Slurm's limit of tasks at once where one of them has it."""
    numbers: set[int] = set()
    limit = ""
    for tasks in lists:
        limit = limit or tasks.partition("%")[2].strip("]")
        for each in _ranges(tasks):
            numbers.update(each[:MOST_JOINED])
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    text = ",".join("-".join(map(str, part)) for part in parts)
    return f"{text}%{limit}" if text and limit.isdigit() else text


def _ranges(tasks: str) -> Iterator[range]:
    """Yield the parts of a list of tasks, which Slurm writes as ``[1,4-7:2%2]``."""
    for part in tasks.partition("%")[0].strip("[]").split(","):
        found = _TASKS.fullmatch(part.strip())
        if found is not None:
            first, last = int(found[1]), min(int(found[2] or found[1]), MOST_TASKS)
            yield range(first, last + 1, max(1, int(found[3] or 1)))


def _common(one: range, other: range) -> bool:
    if not one or not other or one[-1] < other[0] or other[-1] < one[0]:
        return False
    short, long = sorted((one, other), key=len)
    return any(number in long for number in short)
