"""Parse the output of squeue: every row is checked, our jobs are parsed at once, other jobs on access.

The rules are those of ``parse``: the answer is split only at random words, the header must match exactly, and a row
that does not identify its job (id, name, user, state, submit time) makes the whole answer invalid. ``read_job`` parses
the other values of a row; those that cannot be parsed are empty.

Parsing a queue of 50,000 jobs takes a second each time. So rows are kept unparsed, a row that is the same as in the
previous answer is not parsed again, and all work is done in steps of about a millisecond, so that other tasks can run
in between (see ``cooperative``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from carme_hub.domain.cluster.jobs import JOB_NAME_PREFIX, Job, JobsOnDemand, Phase
from carme_hub.domain.cluster.resources import NO_GPUS
from carme_hub.domain.cluster.tres import exit_of, hosts_of, job_gpus, minutes_of, phase_of, time_of
from carme_hub.errors import SlurmUnreachable

_T = TypeVar("_T")

#: squeue's name of a field (``-O``) and its header. The fields that every row must have come first.
QUEUE_FIELDS = {
    "JobID": "JOBID",
    "Name": "NAME",
    "UserName": "USER",
    "State": "STATE",
    "SubmitTime": "SUBMIT_TIME",
    "Reason": "REASON",
    "NodeList": "NODELIST",
    "Partition": "PARTITION",
    "Account": "ACCOUNT",
    "PriorityLong": "PRIORITY",
    "StartTime": "START_TIME",
    "EndTime": "END_TIME",
    "TimeLimit": "TIME_LIMIT",
    "tres-alloc": "TRES_ALLOC",
    "tres-per-node": "TRES_PER_NODE",
    "tres-per-job": "TRES_PER_JOB",
    "tres-per-task": "TRES_PER_TASK",
    "NumNodes": "NODES",
    "exit_code": "EXIT_CODE",
    "RestartCnt": "RESTART_COUNT",
    "Reservation": "RESERVATION",
    "ArrayJobID": "ARRAY_JOB_ID",
    "ArrayTaskID": "ARRAY_TASK_ID",
}

#: Bytes of an answer that one step splits, and rows that one step parses.
STEP, ROWS = 1 << 18, 100
#: What squeue prints for an empty value.
_NO_NAME = frozenset({"", "None", "N/A", "(null)"})
_OURS = JOB_NAME_PREFIX.encode()


@dataclass(frozen=True, slots=True)
class Separators:
    """The two separators of one query: one after each field, another after the last field of a row.

    Both contain the same random letters, so no name can contain either of them.
    """

    field: str
    row: str

    @classmethod
    def of(cls, word: str) -> Separators:
        """Return the separators for a random word (``parse.separator``)."""
        return cls(word, word.replace("@", "#"))


def queue_format(cuts: Separators) -> str:
    """Return the value of squeue's ``-O`` for these separators."""
    *fields, last = QUEUE_FIELDS
    return ",".join([*(f"{field}:{cuts.field}" for field in fields), f"{last}:{cuts.row}"])


class QueueRows(JobsOnDemand):
    """The rows of one answer by job id.

    Args:
        before: the previous answer; its parsed jobs are reused for rows that have not changed.
    """

    def __init__(self, cuts: Separators, before: QueueRows | None = None) -> None:
        self._cut = cuts.field.encode()
        self._rows: dict[int, bytes] = {}
        self._by_state: dict[bytes, list[int]] = {}
        self._by_user: dict[bytes, list[int]] = {}
        self._ours: list[int] = []
        self._jobs: dict[int, Job] = {}
        self._whole = False
        # Copy from the previous answer and keep no reference to it, since a chain of answers would never be freed.
        self._known = before._jobs.copy() if before is not None else {}
        self._said = {id: before._rows[id] for id in self._known} if before is not None else {}
        self._cut_before = before._cut if before is not None else b""

    def add_rows(self, rows: list[bytes]) -> None:
        """Add rows; raise ``ValueError`` for a malformed one."""
        cut, last = self._cut, len(QUEUE_FIELDS)
        for row in rows:
            words = row.split(cut)
            if len(words) != last:
                raise ValueError(f"a line of {len(words)} fields: {row[:80]!r}")
            id, submitted = int(words[0]), words[4]
            if not submitted.isdigit():
                time_of(submitted.decode("utf-8", "replace"))
            if id in self._rows:
                self._forget(id)
            self._rows[id] = row
            state = words[3]
            if state in self._by_state:
                self._by_state[state].append(id)
            else:
                self._by_state[state] = [id]
            user = words[2]
            if user in self._by_user:
                self._by_user[user].append(id)
            else:
                self._by_user[user] = [id]
            if words[1].startswith(_OURS):
                self._ours.append(id)
                self._jobs[id] = self._read(id)

    def _forget(self, id: int) -> None:
        """Remove an earlier row of the same id: the last one counts."""
        for ids in (self._ours, *self._by_state.values(), *self._by_user.values()):
            if id in ids:
                ids.remove(id)
        self._jobs.pop(id, None)

    def _read(self, id: int) -> Job:
        row, known = self._rows[id], self._known.get(id)
        # A name that contains the previous separator cannot match: that row would have one field too many.
        if known is not None and self._said[id] == row.replace(self._cut, self._cut_before):
            return known
        return read_job(row.decode("utf-8", "replace").split(self._cut.decode()))

    # -- JobsOnDemand -------------------------------------------------------------------------------------------------

    def __getitem__(self, id: int) -> Job:
        job = self._jobs.get(id)
        if job is None:
            job = self._jobs[id] = self._read(id)
        return job

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, id: object) -> bool:
        return id in self._rows

    def with_prefix(self, prefix: str) -> Iterator[Job]:
        """Yield the jobs whose names begin with a prefix; our jobs are parsed already."""
        if prefix.startswith(JOB_NAME_PREFIX):
            return (job for job in map(self.__getitem__, self._ours) if job.name.startswith(prefix))
        return (job for job in self.values() if job.name.startswith(prefix))

    def of_user(self, user: str) -> Iterator[Job]:
        """Yield the jobs of one user."""
        return map(self.__getitem__, self._by_user.get(user.encode(), ()))

    def in_phases(self, phases: Collection[Phase]) -> Iterator[Job]:
        """Yield the jobs in these phases."""
        for state, ids in self._by_state.items():
            if _phase(state) in phases:
                yield from map(self.__getitem__, ids)

    def read_in_steps(self, phases: Collection[Phase] = ()) -> Iterator[None]:
        """Parse the jobs in these phases (or all) that are not parsed yet, a few jobs at each step."""
        if self._whole:
            return
        ids = [ids for state, ids in self._by_state.items() if _phase(state) in phases] if phases else [self._rows]
        for number, id in enumerate(chain.from_iterable(ids), 1):
            if id not in self._jobs:
                self._jobs[id] = self._read(id)
            if not number % ROWS:
                yield
        if not phases:
            self._whole, self._known, self._said = True, {}, {}


def parse_queue(answer: bytes, cuts: Separators, before: QueueRows | None = None) -> Generator[None, None, QueueRows]:
    """Parse the output of ``squeue -O`` with ``queue_format(cuts)`` in steps.

    Raises:
        SlurmUnreachable: any part of it cannot be parsed.
    """
    end = cuts.row.encode() + b"\n"
    header = cuts.field.encode().join(word.encode() for word in QUEUE_FIELDS.values()) + end
    if not answer.startswith(header) or not answer.endswith(end):
        words = answer[:80].decode("utf-8", "replace")
        raise SlurmUnreachable(f"squeue: the answer cannot be understood: {words!r}")
    found = QueueRows(cuts, before)
    at = len(header)
    try:
        while at < len(answer):
            until = answer.rfind(end, at, at + STEP)
            if until < 0:  # one very long row
                until = answer.index(end, at)
            found.add_rows(answer[at:until].split(end))
            at = until + len(end)
            yield
    except ValueError as error:
        raise SlurmUnreachable(f"squeue: the answer cannot be understood: {error}") from error
    return found


def lenient(read: Callable[..., _T], nothing: _T, *args: object) -> _T:
    """Return a parsed value, or ``nothing`` if it cannot be parsed."""
    try:
        return read(*args)
    except (ValueError, LookupError):
        return nothing


def _phase(state: bytes) -> Phase:
    return phase_of(state.decode("utf-8", "replace"))


def _time(text: str) -> float:
    """Return a time from squeue's output: digits, or a word for none."""
    return float(text) if text.isascii() and text.isdigit() else lenient(time_of, 0.0, text)


def read_job(words: list[str]) -> Job:
    """Parse one row: its fields in the order of ``QUEUE_FIELDS``."""
    id, name, user, state, submitted, reason, nodes, partition, account, priority, start, end, limit = words[:13]
    alloc, per_node, per_job, per_task, count, exit_code, restarts, reservation, array, tasks = words[13:]
    phase = phase_of(state)
    asked = count.partition("-")[0]
    in_array = tasks not in _NO_NAME
    nodes_with_time = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 10 else 1
    return Job(
        id=int(id),
        name=name,
        user=user,
        state=state,
        phase=phase,
        reason="" if reason in _NO_NAME else reason,
        nodes=lenient(hosts_of, (), nodes),
        partition=partition,
        account=account,
        priority=lenient(int, 0, priority),
        submitted=time_of(submitted),
        start=_time(start),
        end=_time(end),
        time_limit=lenient(minutes_of, 0, limit),
        gpus=lenient(job_gpus, NO_GPUS, alloc, per_node, per_job, per_task, nodes_with_time),
        exit_code=lenient(exit_of, None, exit_code) if phase is Phase.TERMINAL else None,
        restarts=lenient(int, 0, restarts),
        reservation="" if reservation in _NO_NAME else reservation,
        array=lenient(int, 0, array) if in_array else 0,
        tasks=tasks if in_array else "",
    )
