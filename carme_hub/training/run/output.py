"""The output of a step's ranks: it comes through one pipe, each line with its task's number, and is split into logs.

Slurm completes an unfinished line when it labels it (srun(1), ``--label``), so every line is whole. Lines without a
label are Slurm's own messages.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_LABEL = re.compile(rb" *(\d{1,6}): ")
_EXITED = re.compile(r"tasks? ([\d,\-\[\]]+): (.*)")
#: Before the line in which carme-rank says how its command ended (carme_hub/node/rank.py, END_MARK).
_END_MARK = b"\x1e[carme-rank] "
#: Newest lines of each rank that are kept for followers, and the most bytes of each rank's log.
NEWEST_LINES, MAX_LOG_BYTES = 40, 1 << 30
#: How much of a log is searched for what a library said before it killed its process; stacks may follow it.
TAIL_BYTES = 1 << 18


class Output:
    """Writes ``rank-<n>.log`` of a run, for any number of steps."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, threading.Lock()
        self._files: dict[int, int] = {}
        self._written: dict[int, int] = {}
        self._newest: dict[int, deque[str]] = {}
        self._lost: dict[int, int] = {}

    def write(self, rank: int, line: bytes) -> None:
        """Write one line of a rank. ``\\r`` goes back to its beginning, as on a terminal.

        A full disk, or a home that does not answer, loses lines but does not end the run; the log says how many.
        """
        line = line.rstrip(b"\r").rsplit(b"\r", 1)[-1]
        with self._lock:
            self._newest.setdefault(rank, deque(maxlen=NEWEST_LINES)).append(line.decode(errors="replace"))
            written = self._written.get(rank, 0)
            if written > MAX_LOG_BYTES:
                return
            text = (
                line + b"\n" if written + len(line) < MAX_LOG_BYTES else b"[carme] the log is full; no more is kept\n"
            )
            if lost := self._lost.get(rank, 0):
                text = b"[carme] %d lines could not be kept\n" % lost + text
            try:
                _write_whole(self._file(rank), text)
            except OSError:
                self._lost[rank] = lost + 1
            else:
                self._lost[rank] = 0
                self._written[rank] = written + len(line) + 1

    def newest(self, rank: int) -> list[str]:
        """Return the newest lines of a rank."""
        with self._lock:
            return list(self._newest.get(rank, ()))

    def tail(self, rank: int) -> list[str]:
        """Return the lines at the end of a rank's log, at most ``TAIL_BYTES`` of them."""
        try:
            with (self._folder / f"rank-{rank}.log").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
                return file.read().decode(errors="replace").splitlines()
        except OSError:
            return self.newest(rank)

    def close(self) -> None:
        """Close all logs."""
        with self._lock:
            while self._files:
                with contextlib.suppress(OSError):  # the kernel may report a lost write only now (close(2))
                    os.close(self._files.popitem()[1])

    def _file(self, rank: int) -> int:
        if rank not in self._files:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
            self._files[rank] = os.open(self._folder / f"rank-{rank}.log", flags, 0o600)
        return self._files[rank]


def _write_whole(file: int, text: bytes) -> None:
    """Write the whole text, or nothing: half a line would run into the next one."""
    written = os.write(file, text)
    if written < len(text) and text[:written][-1:] != b"\n":
        with contextlib.suppress(OSError):
            os.ftruncate(file, os.fstat(file).st_size - written)
        raise OSError("No room for the whole line.")


class Reader(threading.Thread):
    """Splits the output of one pipe of a step, until its writers have closed it.

    Args:
        pipe: the end to read, closed here. take: gets a task's number and a line. say: gets Slurm's own lines.
    """

    def __init__(self, pipe: int, take: Callable[[int, bytes], None], say: Callable[[str], None]) -> None:
        super().__init__(name="carme-output", daemon=True)
        self._pipe, self._take, self._say = pipe, take, say

    def run(self) -> None:
        """Read until the end."""
        with os.fdopen(self._pipe, "rb") as lines:
            for line in lines:
                text = line.rstrip(b"\n")
                label = _LABEL.match(text)
                if label:
                    self._take(int(label[1]), text[label.end() :])
                elif text.strip():
                    self._say(text.decode(errors="replace"))


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """How the command of a task ended, as its node reports it.

    Attributes:
        status: 128 + n for signal n. out_of_memory: whether the kernel killed a process of the task for lack of memory.
        memory_mib: the task's memory limit, 0 = none or unknown. started: whether its container was started.
    """

    task: int
    status: int
    out_of_memory: bool = False
    memory_mib: int = 0
    started: bool = True


def split_task_end(task: int, line: bytes) -> tuple[bytes, TaskEnd | None]:
    """Separate the report of carme-rank from a line; return what the rank itself printed, and the report."""
    text, mark, report = line.partition(_END_MARK)
    if not mark:
        return line, None
    try:
        end = json.loads(report)
        memory = bool(end["out_of_memory"]), int(end["memory_mib"])
        return text, TaskEnd(task, int(end["status"]), *memory, bool(end.get("started", True)))
    except (ValueError, KeyError, TypeError):  # the rank printed it
        return line, None


def parse_task_failure(line: str) -> tuple[int, str] | None:
    """Parse a line of Slurm about ended tasks: ``srun: error: n2: task 3: Exited with …``; return the first and how."""
    match = _EXITED.search(line)
    number = re.match(r"\[?(\d+)", match[1]) if match else None
    return (int(number[1]), match[2].strip()) if match and number else None
