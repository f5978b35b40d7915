"""What an elastic run knows of ranks that it lost: by whose fault, how often, and whether too few are left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from carme_hub.training.conductor.cause import end_text, is_consequence, slurm_text, status_text
from carme_hub.training.conductor.step import StartedStep
from carme_hub.training.run import messages
from carme_hub.training.run.rendezvous import Rendezvous
from carme_hub.training.run.run_folder import State

from .rendezvous import DIED

#: Errors of each worker that follow from the loss of another before they count as failures.
MAX_CONSEQUENCES = 3
#: Seconds of training after which earlier deaths of processes count no more.
FORGET_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Loss:
    """A rank that was lost.

    Attributes:
        number, node: of its worker. text: what happened, as a sentence.
    """

    number: int
    node: str
    text: str


class Losses:
    """The losses of one run.

    Args:
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: Errors that follow from a loss, since the last change of the ranks.
        self.consequences: list[State] = []
        self.last: Loss | None = None
        self._followed: set[tuple[int, int]] = set()  # number and generation of such errors
        self._read: set[str] = set()
        self._deaths: dict[int, int] = {}
        self._died_in: dict[int, float] = {}  # when the first process of a generation died, by generation
        self._too_few_since = 0.0

    def follows(self, error: State, number: int, workers: int) -> bool:
        """Return whether an error of a worker only follows from the loss of another, and remember it."""
        self.consequences.append(error)
        if not is_consequence(error) or len(self.consequences) > MAX_CONSEQUENCES * (workers + 1):
            return False
        self._followed.add((number, int(error.get("generation") or 0)))
        return True

    def deaths(self, meeting: Rendezvous, read_reports: Callable[[], None]) -> Iterator[tuple[str, int, str]]:
        """Yield workers whose process below torch's agent ended without a report: name, generation, and how it ended.

        Args:
            read_reports: processes the workers' own reports; each comes before that of the agent.
        """
        for key in meeting.arrivals(DIED):
            if key in self._read:
                continue
            self._read.add(key)
            found = messages.read_message(meeting, DIED, key)
            read_reports()
            if found is not None and (int(found["number"]), int(found["generation"])) not in self._followed:
                status = int(found["exit"])
                how = status_text(128 - status if status < 0 else status)
                yield key.rpartition(":")[0], int(found["generation"]), how

    def count_death(self, number: int, generation: int) -> int:
        """Count such an end of a worker's process; return how many there have been lately.

        Only the first one of a generation counts: the others' libraries may abort their processes as a consequence. A
        generation that has lasted for ``FORGET_SECONDS`` shows that its ranks can train.
        """
        now = self._clock()
        last = max(self._died_in.values(), default=now)
        if generation not in self._died_in:
            self._died_in[generation] = now
            if now - last > FORGET_SECONDS:
                self._deaths.clear()
            self._deaths[number] = self._deaths.get(number, 0) + 1
        return self._deaths.get(number, 0)

    def forget(self, number: int) -> None:
        """Count the deaths of a worker anew: another one gets its number."""
        self._deaths.pop(number, None)

    def record(self, number: int, node: str, text: str) -> None:
        """Record the loss of a rank: errors that follow from it are counted anew; see ``Loss``."""
        self.last = Loss(number, node, text)
        self.consequences.clear()

    def too_few(self, few: bool, limit: float) -> Loss | None:
        """Return the last loss where too few ranks have been left for ``limit`` seconds."""
        if not few or self.last is None:
            self._too_few_since = 0.0
            return None
        self._too_few_since = self._too_few_since or self._clock()
        return self.last if self._clock() > self._too_few_since + limit else None


def how_step_ended(handle: StartedStep) -> str:
    """Describe how the step of a lost worker ended: by its node's report, else by Slurm's, after the rank's name."""
    if handle.task_ends:
        return end_text(handle.task_ends[-1])
    if handle.failed_tasks:
        return slurm_text(handle.failed_tasks[0][1])
    return f"ended: {handle.messages[-1]}" if handle.messages else "ended"
