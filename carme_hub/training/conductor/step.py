"""One Slurm step of a run: it starts the step, splits its output by rank, and ends all of its ranks."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from carme_hub.training.run.output import Output, Reader, TaskEnd, parse_task_failure, split_task_end

if TYPE_CHECKING:
    from carme_hub.training.session.step_broker import Broker, RunningStep, Step

#: Seconds for ranks to end after INT, after TERM, and between two calls of ``check`` while a step starts.
INTERRUPT_SECONDS, TERM_SECONDS, CHECK_INTERVAL = 2.0, 2.5, 0.1


class StartedStep:
    """A step that was started.

    Attributes:
        step: as requested. messages: lines of Slurm itself. failed_tasks: tasks that failed and how, in Slurm's order.
        task_ends: how tasks ended, as their nodes report it, in the order of arrival; a batch job has no such reports.
        exit: status of the step, None while it runs.

    Args:
        rank_of_task: maps a task to the rank whose log gets its lines.
    """

    def __init__(self, broker: Broker, step: Step, output: Output, rank_of_task: Callable[[int], int]) -> None:
        self.step = step
        self.messages: list[str] = []
        self.failed_tasks: list[tuple[int, str]] = []
        self.task_ends: list[TaskEnd] = []
        self.exit: int | None = None
        self._lock = threading.Lock()
        pipes = [os.pipe(), os.pipe()]
        try:
            self._running: RunningStep = broker.start(step, pipes[0][1], pipes[1][1])
        except BaseException:
            for pipe in pipes:
                os.close(pipe[0])
            raise
        finally:
            for pipe in pipes:
                os.close(pipe[1])

        def take(task: int, line: bytes) -> None:
            text, end = split_task_end(task, line)
            if end is not None:
                with self._lock:
                    self.task_ends = [*self.task_ends, end]
            if text or end is None:
                output.write(rank_of_task(task), text)

        self._readers = [Reader(pipe[0], take, self._add_message) for pipe in pipes]
        for reader in self._readers:
            reader.start()

    def _add_message(self, line: str) -> None:
        with self._lock:
            self.messages = [*self.messages[-200:], line]
            if (bad := parse_task_failure(line)) is not None:
                self.failed_tasks.append(bad)

    def wait(self, timeout: float | None = None) -> int | None:
        """Return the status of the step when it has ended and its output is complete; None after ``timeout``."""
        if self.exit is None:
            status = self._running.wait(timeout)
            if status is not None:
                self._join_readers()
            for line in self._running.messages:
                if line not in self.messages:
                    self._add_message(line)
            self.exit = status
        return self.exit

    def signal(self, name: str) -> None:
        """Send a signal to all ranks: INT, TERM, KILL, USR1."""
        if self.exit is None:
            with contextlib.suppress(OSError):  # it has ended meanwhile
                self._running.signal(name)

    def stop(self, *, interrupt: bool = False) -> None:
        """End all ranks within five seconds; return when none is left."""
        for name, seconds in ((("INT", INTERRUPT_SECONDS),) if interrupt else ()) + (
            ("TERM", TERM_SECONDS),
            ("KILL", 1.0),
        ):
            if self.wait(0) is None:
                self.signal(name)
                self.wait(seconds)
        self.close()

    def close(self) -> None:
        """Close the connection of the step, which ends its remaining ranks."""
        self._running.close()
        self._join_readers()

    def _join_readers(self) -> None:
        for reader in self._readers:
            reader.join(1.0)  # the pipe closes with the step, unless another process holds it


def start_in_thread(begin: Callable[[], StartedStep], check: Callable[[], None]) -> StartedStep:
    """Start a step in a thread, so that the run can be stopped while Slurm is slow.

    Args:
        check: is called meanwhile; where it raises an error, the step is ended.
    """
    started: list[StartedStep | Exception] = []
    cancelled = threading.Event()

    def start() -> None:
        try:
            started.append(begin())
        except Exception as error:  # noqa: BLE001  raised below
            started.append(error)
        if cancelled.is_set() and isinstance(started[0], StartedStep):
            started[0].stop()

    thread = threading.Thread(target=start, name="carme-start", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            check()
            thread.join(CHECK_INTERVAL)
    except BaseException:
        cancelled.set()
        raise
    if isinstance(started[0], Exception):
        raise started[0]
    return started[0]
