"""A run that has no room in its session's job asks for a companion, waits for it, and gives it back at its end."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from carme_hub.training.run.description import counted, kind_of_gpu
from carme_hub.training.session.companions import Companion, Hub, NoHub, Refused, going, let_go
from carme_hub.training.session.step_broker import Allocation, NoBroker, NotReady

if TYPE_CHECKING:
    from carme_hub.training.run.placement import Place

    from .conductor import Conductor

#: Seconds between two questions whether it runs, between two tries to give it back, until one gives up on that, and for
#: one to be seen that was asked for and not answered for: the hub may be about to open it.
OFTEN, AGAIN, PATIENCE, UNSEEN = 1.0, 2.0, 60.0, 5.0
#: Minutes that it has beyond the time limit of the run, for its containers to start.
STARTING = 2


class CompanionJob:
    """One companion of one run.

    Attributes:
        id: its session id, "" before ``open``.
    """

    def __init__(self, conductor: Conductor) -> None:
        self.id = ""
        self._conductor = conductor
        self._hub = Hub.from_environ()
        self._unanswered = False  # whether there may be one of which no answer told

    def open(self, there: Place) -> Allocation:
        """Ask for it and return what it has, when it runs. While it waits the run can be stopped.

        Raises:
            conductor.Stopped: the run was stopped. conductor.Failed: the hub said no, or it ended.
        """
        from .conductor import Failed

        conductor, asked = self._conductor, self._conductor.asked
        conductor.standing.update(state="waiting", message="The hub is asked for more GPUs.")
        while not self.id:
            try:
                opened = self._hub.open(
                    nodes=there.nodes,
                    gpus=there.gpus,
                    minutes=-(-asked.seconds // 60) + STARTING if asked.seconds else 0,
                    name=conductor.run.id,
                    key=conductor.told["key"],
                )
            except Refused as error:
                raise Failed(str(error)) from error
            except NoHub as error:  # the answer may be lost; asked again with this key it is the same one
                self._unanswered = True
                conductor.standing.update(message=str(error))
                conductor.stopping.wait(AGAIN)
                conductor.check()
            else:
                self.id = opened.id
        conductor.standing.update(companions=[self.id], message=self._said(opened))
        while True:
            conductor.check()
            try:
                now = next((each for each in self._hub.list() if each.id == self.id), None)
            except NoHub:  # it is started anew; the companion goes on waiting meanwhile
                conductor.stopping.wait(OFTEN)
                continue
            if now is not None and now.state == "ending":
                raise Failed("The request for more GPUs was cancelled before it began. Run it again to ask anew.")
            if now is None or now.state == "ended":
                said = f" {now.said}" if now is not None and now.said else ""
                raise Failed(f"The GPUs that were asked for ended before they were there.{said} Run it again.")
            conductor.standing.update(message=self._said(now))
            if now.state == "running":
                try:
                    return conductor.broker.allocation(self.id)
                except NotReady:
                    pass  # Slurm says so a moment later
                except NoBroker as error:  # it is busy; what was waited for, for hours maybe, is not let go for that
                    conductor.standing.update(message=str(error))
            conductor.stopping.wait(OFTEN)

    def lost(self) -> str:
        """Return what there is to say where it has ended under its ranks, "" where it has not."""
        try:
            self._conductor.broker.allocation(self.id)
        except NotReady:  # by whom is not known here
            return (
                "The GPUs beside this session were taken away while the run had them: their job was cancelled, "
                "preempted or given back."
            )
        except NoBroker:
            pass  # nothing is known, and what the rank said stands
        return ""

    def give_back(self) -> None:
        """Give it back; the hub may be down for a moment."""
        begun = time.monotonic()
        while self.id or self._unanswered:
            try:
                if self.id:
                    self._hub.close(self.id)
                    return
                for id in going(self._hub, self._conductor.run.id):
                    with contextlib.suppress(Refused):  # it has ended since
                        self._hub.close(id)
                    self._unanswered = False
                if time.monotonic() > begun + UNSEEN:
                    return
            except NoHub:
                if time.monotonic() > begun + PATIENCE:
                    if self.id:
                        let_go(self.id)
                    raise
            time.sleep(AGAIN)

    def _said(self, companion: Companion) -> str:
        kind = kind_of_gpu(self._conductor.standing.get())
        if companion.state != "waiting":
            return ""
        said = companion.said
        if said.startswith("Waiting for ") and "; " in said:
            said = said.partition("; ")[2]  # for what is said already
        return f"Waiting for {counted(companion.gpus, f'more {kind}')}: {said[:1].lower()}{said[1:]}"
