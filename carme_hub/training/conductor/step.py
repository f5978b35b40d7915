"""The Slurm steps of a run: they are started, their output is split by rank, and all of their ranks are ended."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from carme_hub.training.run.output import Output, Reader, TaskEnd, parse_task_failure, split_task_end

if TYPE_CHECKING:
    from carme_hub.training.session.step_broker import Broker, RunningStep, Step

#: Seconds for ranks to end after INT, after TERM, and between two calls of ``check`` while a step starts.
INTERRUPT_SECONDS, TERM_SECONDS, CHECK_INTERVAL = 2.0, 2.5, 0.1


class StartedStep:
    """A step that was started.

    Attributes:
        step: as requested. messages: lines of Slurm itself.
        failures: ranks whose task failed, and how, in Slurm's order. ends: how the tasks of ranks ended, as their nodes
        report it, in the order of arrival; a batch job has no such reports. Each has the time when it became known.
        exit: status of the step, None while it runs.

    Args:
        rank_of_task: maps a task to its rank, whose log gets its lines.
    """

    def __init__(self, broker: Broker, step: Step, output: Output, rank_of_task: Callable[[int], int]) -> None:
        self.step = step
        self.messages: list[str] = []
        self.failures: list[tuple[float, int, str]] = []
        self.ends: list[tuple[float, TaskEnd]] = []
        self.exit: int | None = None
        self._rank_of_task = rank_of_task
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
                    self.ends = [*self.ends, (time.monotonic(), replace(end, task=rank_of_task(task)))]
            if text or end is None:
                output.write(rank_of_task(task), text)

        self._readers = [Reader(pipe[0], take, self._add_message) for pipe in pipes]
        for reader in self._readers:
            reader.start()

    def _add_message(self, line: str) -> None:
        with self._lock:
            self.messages = [*self.messages[-200:], line]
            if (bad := parse_task_failure(line)) is not None:
                self.failures.append((time.monotonic(), self._rank_of_task(bad[0]), bad[1]))

    @property
    def complete(self) -> bool:
        """Return whether it has ended."""
        return self.exit is not None

    @property
    def failed_tasks(self) -> list[tuple[int, str]]:
        """Return the ranks whose task failed, and how, in Slurm's order."""
        return [(rank, how) for _, rank, how in self.failures]

    @property
    def task_ends(self) -> list[TaskEnd]:
        """Return how the tasks of ranks ended, as their nodes report it, in the order of arrival."""
        return [end for _, end in self.ends]

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


class StartedSteps:
    """Steps in several jobs whose ranks belong together, as one ``StartedStep`` whose tasks are all ranks."""

    def __init__(self, steps: Sequence[StartedStep]) -> None:
        self._steps = steps

    @property
    def messages(self) -> list[str]:
        """Return the lines of Slurm itself."""
        return [line for step in self._steps for line in step.messages]

    @property
    def failed_tasks(self) -> list[tuple[int, str]]:
        """Return the ranks whose task failed, and how, in the order in which Slurm told it."""
        return [(rank, how) for _, rank, how in sorted(each for step in self._steps for each in step.failures)]

    @property
    def task_ends(self) -> list[TaskEnd]:
        """Return how the tasks of ranks ended, as their nodes report it, in the order of arrival."""
        found = (each for step in self._steps for each in step.ends)
        return [end for _, end in sorted(found, key=lambda each: each[0])]

    @property
    def complete(self) -> bool:
        """Return whether all of them have ended."""
        return all(step.complete for step in self._steps)

    @property
    def exit(self) -> int | None:
        """Return the status when all steps have ended, or one without success; None while they run."""
        ended = [step.exit for step in self._steps if step.exit is not None]
        return max(ended) if len(ended) == len(self._steps) or any(ended) else None

    def wait(self, timeout: float) -> int | None:
        """Return the status as ``exit``; None after ``timeout`` seconds."""
        running = [step for step in self._steps if step.exit is None]
        for step in running:
            step.wait(timeout / len(running))
        return self.exit

    def stop(self) -> None:
        """End all ranks within five seconds; return when none is left."""
        threads = [threading.Thread(target=step.stop) for step in self._steps]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


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
