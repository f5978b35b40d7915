"""Steps in two jobs are followed as one: whose rank ended first, and when all or one without success have ended."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from carme_hub.node.rank import END_MARK
from carme_hub.training.conductor.step import StartedStep, StartedSteps
from carme_hub.training.run.output import Output
from carme_hub.training.session.step_broker import Broker, RunningStep, Step


class ForgedStep(RunningStep):
    """A step whose lines and end a test writes."""

    def __init__(self, out: int, err: int) -> None:
        self.out, self.err = os.dup(out), os.dup(err)
        self.messages: tuple[str, ...] = ()
        self.signals: list[str] = []
        self.status: int | None = None
        self.ended = threading.Event()

    def says(self, line: str) -> None:
        os.write(self.err, line.encode() + b"\n")

    def prints(self, line: str) -> None:
        os.write(self.out, line.encode() + b"\n")

    def ends(self, status: int) -> None:
        self.status = status
        for each in (self.out, self.err):
            os.close(each)
        self.ended.set()

    def wait(self, timeout: float | None = None) -> int | None:
        self.ended.wait(timeout)
        return self.status

    def signal(self, name: str) -> None:
        self.signals.append(name)
        self.ends(143)

    def close(self) -> None:
        if self.status is None:
            self.ends(143)


class ForgedBroker(Broker):
    def start(self, step: Step, out: int, err: int) -> ForgedStep:
        self.last = ForgedStep(out, err)
        return self.last


def started(tmp_path: Path) -> tuple[StartedSteps, ForgedStep, ForgedStep]:
    """Two steps: ranks 0 and 1, and ranks 2 to 4."""
    broker, output = ForgedBroker("none"), Output(tmp_path)
    steps, forged = [], []
    for ranks, first in ((2, 0), (3, 2)):
        steps.append(StartedStep(broker, Step("run", ranks, ("x",)), output, lambda task, first=first: first + task))  # type: ignore[misc]
        forged.append(broker.last)
    return StartedSteps(steps), forged[0], forged[1]


def wait_until(what: object) -> None:
    end = time.monotonic() + 5
    while not what() and time.monotonic() < end:  # type: ignore[operator]
        time.sleep(0.01)


def test_ends_have_the_numbers_of_their_ranks_in_the_order_of_arrival(tmp_path: Path) -> None:
    steps, own, companion = started(tmp_path)
    companion.says(f'1: {END_MARK}{{"status": 137, "out_of_memory": false, "memory_mib": 0}}')
    wait_until(lambda: steps.task_ends)
    own.says(f'0: {END_MARK}{{"status": 1, "out_of_memory": false, "memory_mib": 0}}')
    wait_until(lambda: len(steps.task_ends) == 2)
    assert [(end.task, end.status) for end in steps.task_ends] == [(3, 137), (0, 1)]
    companion.prints("2: of rank 4")
    wait_until(lambda: (tmp_path / "rank-4.log").exists())
    assert (tmp_path / "rank-4.log").read_text() == "of rank 4\n"
    companion.says("srun: error: node2: task 2: Exited with exit code 3")
    wait_until(lambda: steps.failed_tasks)
    own.says("srun: error: node1: task 1: Exited with exit code 4")
    wait_until(lambda: len(steps.failed_tasks) == 2)
    assert steps.failed_tasks == [(4, "Exited with exit code 3"), (1, "Exited with exit code 4")]
    assert len(steps.messages) == 2
    steps.stop()
    assert (own.signals, companion.signals) == (["TERM"], ["TERM"])


def test_success_is_that_of_all_and_a_failure_that_of_one(tmp_path: Path) -> None:
    steps, own, companion = started(tmp_path)
    assert steps.wait(0.01) is None
    own.ends(0)
    assert steps.wait(0.01) is None
    companion.ends(0)
    assert steps.wait(1) == steps.exit == 0
    steps, own, companion = started(tmp_path)
    companion.ends(1)  # its job was cancelled: the ranks of the session would wait for ever
    assert steps.wait(1) == steps.exit == 1
    assert not steps.complete  # the cause may be told by the other
    steps.stop()
    assert steps.complete
    assert own.status == 143
