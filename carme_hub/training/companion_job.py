"""A run that has no room in its session's job asks for a companion, waits for it, and gives it back at its end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .broker import Allocation, NotReady
from .companions import Companion, Hub, NoHub, Refused

if TYPE_CHECKING:
    from .conductor import Conducting
    from .placing import Place

#: Seconds between two questions whether it runs, between two tries to give it back, and until one gives up on that.
OFTEN, AGAIN, PATIENCE = 1.0, 2.0, 60.0
#: Minutes that it has beyond the time limit of the run, for its containers to start.
STARTING = 2


class CompanionJob:
    """One companion of one run.

    Attributes:
        id: its session id, "" before ``open``.
    """

    def __init__(self, conductor: Conducting) -> None:
        self.id = ""
        self._conductor = conductor
        self._hub = Hub.from_environ()

    def open(self, there: Place) -> Allocation:
        """Ask for it and return what it has, when it runs. While it waits the run can be stopped.

        Raises:
            conductor.Stopped: the run was stopped. conductor.Failed: the hub said no, or it ended.
        """
        from .conductor import Failed

        conductor, asked = self._conductor, self._conductor.asked
        conductor.standing.update(state="waiting", message="The hub is asked for more GPUs.")
        try:
            opened = self._hub.open(
                nodes=there.nodes,
                gpus=there.gpus,
                minutes=-(-asked.seconds // 60) + STARTING if asked.seconds else 0,
                name=conductor.run.id,
                key=f"{conductor.told['session']}-{conductor.run.id}",
            )
        except (NoHub, Refused) as error:
            raise Failed(str(error)) from error
        self.id = opened.id
        conductor.standing.update(companions=[self.id], message=_said(opened))
        while True:
            conductor.check()
            try:
                now = next((each for each in self._hub.list() if each.id == self.id), None)
            except NoHub:  # it is started anew; the companion goes on waiting meanwhile
                conductor.stopping.wait(OFTEN)
                continue
            if now is None or now.state in ("ending", "ended"):
                raise Failed(
                    f"The GPUs that were asked for ended before they were there. {now.said if now else ''}".strip()
                )
            conductor.standing.update(message=_said(now))
            if now.state == "running":
                try:
                    return conductor.broker.allocation(self.id)
                except NotReady:
                    pass  # Slurm says so a moment later
            conductor.stopping.wait(OFTEN)

    def lost(self) -> str:
        """Return what there is to say where it has ended under its ranks, "" where it has not."""
        try:
            self._conductor.broker.allocation(self.id)
        except NotReady as error:
            return f"The GPUs beside this session were taken away while the run had them. {error}"
        return ""

    def give_back(self) -> None:
        """Give it back; the hub may be down for a moment."""
        end = time.monotonic() + PATIENCE
        while self.id:
            try:
                self._hub.close(self.id)
                return
            except NoHub:
                if time.monotonic() > end:
                    raise
                time.sleep(AGAIN)


def _said(companion: Companion) -> str:
    return f"Waiting for {companion.gpus} more GPUs: {companion.said}" if companion.state == "waiting" else ""
