"""A step of a run, whose output is taken apart while it runs; and how all of its ranks are ended."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from carme_hub.training.run.output import Output, Reader, ended_badly

if TYPE_CHECKING:
    from carme_hub.training.session.step_broker import Broker, RunningStep, Step

#: Seconds for ranks to end after an interrupt, after they were told to, and between two looks at a step that starts.
INTERRUPTED, TOLD, OFTEN = 2.0, 2.5, 0.1


class StartedStep:
    """One step that was started.

    Attributes:
        step: what was asked for. said: what Slurm itself said. bad: tasks that ended badly and how, in Slurm's order.
        exit: status of the step, None while it runs.

    Args:
        rank_of_task: whose log a task's lines go to.
    """

    def __init__(self, broker: Broker, step: Step, output: Output, rank_of_task: Callable[[int], int]) -> None:
        self.step = step
        self.said: list[str] = []
        self.bad: list[tuple[int, str]] = []
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
            output.write(rank_of_task(task), line)

        self._readers = [Reader(pipe[0], take, self._say) for pipe in pipes]
        for reader in self._readers:
            reader.start()

    def _say(self, line: str) -> None:
        with self._lock:
            self.said = [*self.said[-200:], line]
            if (bad := ended_badly(line)) is not None:
                self.bad.append(bad)

    def wait(self, timeout: float | None = None) -> int | None:
        """Return the status of the step when it has ended and all it wrote is kept; None when the time is over."""
        if self.exit is None:
            status = self._running.wait(timeout)
            if status is not None:
                self._settle()
                for line in self._running.said:
                    if line not in self.said:
                        self._say(line)
                self.exit = status
        return self.exit

    def signal(self, name: str) -> None:
        """Send a signal to all ranks: INT, TERM, KILL, USR1."""
        if self.exit is None:
            with contextlib.suppress(OSError):  # it ended in between
                self._running.signal(name)

    def stop(self, *, interrupt: bool = False) -> None:
        """End all ranks, within five seconds; return when none is left."""
        for name, patience in ((("INT", INTERRUPTED),) if interrupt else ()) + (("TERM", TOLD), ("KILL", 1.0)):
            if self.wait(0) is None:
                self.signal(name)
                self.wait(patience)
        self.close()

    def close(self) -> None:
        """Let the step go, which ends what is left of it."""
        self._running.close()
        self._settle()

    def _settle(self) -> None:
        for reader in self._readers:
            reader.join(1.0)  # its pipe is closed with the step; longer only where something else holds it open


def beside(begin: Callable[[], StartedStep], check: Callable[[], None]) -> StartedStep:
    """Start a step beside, so that the run can be stopped while Slurm takes its time.

    Args:
        check: is called meanwhile, and ends the step where it raises something.
    """
    begun: list[StartedStep | Exception] = []
    away = threading.Event()

    def start() -> None:
        try:
            begun.append(begin())
        except Exception as error:  # noqa: BLE001  raised below
            begun.append(error)
        if away.is_set() and isinstance(begun[0], StartedStep):
            begun[0].stop()

    thread = threading.Thread(target=start, name="carme-start", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            check()
            thread.join(OFTEN)
    except BaseException:
        away.set()
        raise
    if isinstance(begun[0], Exception):
        raise begun[0]
    return begun[0]
