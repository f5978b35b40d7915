"""A rolling update: has nodes begin as the plan allows, takes their steps, and stops where too many fail."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from carme_hub.cli.hub_client import HubUnreachable
from carme_hub.domain.nodes.plan import Plan
from carme_hub.domain.nodes.progress import NodeProgress, Progress, Stage, may_begin

from .hub_nodes import HubNodes
from .node_steps import NodeSteps
from .progress_file import ProgressFolder

#: What is said of a node that has come to a stage.
_SAID = {
    Stage.WAITING: "waits again",
    Stage.DRAINING: "is being drained",
    Stage.EMPTYING: "is drained",
    Stage.UPDATING: "is empty; the site's command begins",
    Stage.CHECKING: "is checked",
    Stage.RESUMING: "is being resumed",
    Stage.DONE: "is updated, and in service",
    Stage.FAILED: "failed, and stays drained",
    Stage.LEFT: "is left as it was",
}


class RollingUpdate:
    """One update, which goes on from wherever it is.

    Args:
        say: shows a line of progress. every: seconds between two looks at a node that has to wait.
    """

    def __init__(
        self,
        plan: Plan,
        hub: HubNodes,
        folder: ProgressFolder,
        progress: Progress,
        say: Callable[[str], None],
        *,
        every: float = 10.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.plan, self.progress = plan, progress
        self._folder, self._say, self._every, self._clock = folder, say, every, clock
        self._steps = NodeSteps(plan, hub, progress.began, folder.path, self._save, clock)
        self._silent = False

    async def run(self) -> Progress:
        """Update nodes until all have ended, or until it stops; return how far it came.

        Raises:
            HubRefused: the hub does not take the token any more. OSError: the progress cannot be stored.
        """
        stopped = False
        while True:
            ending = self._folder.aborted or self.progress.is_stopped(self.plan)
            if ending and not stopped:
                stopped = True
                self._say(self._why_ending())
            if not ending:
                for one in may_begin(self.plan, self.progress):
                    self._save(one.to(Stage.DRAINING, self._clock()))
            active = self.progress.active
            if not active:
                return self.progress
            moved = await asyncio.gather(*(self._step(one, ending) for one in active))
            if not any(moved):
                await asyncio.sleep(self._every)

    async def _step(self, one: NodeProgress, ending: bool) -> bool:
        """Take a node's step; return whether it came on."""
        try:
            new = await self._steps.step(one, ending=ending)
        except HubUnreachable as error:
            if not self._silent:
                self._say(f"{error}. The update goes on as soon as it answers.")
            self._silent = True
            return False
        if self._silent:
            self._silent = False
            self._say("The hub answers again.")
        if new != self.progress.nodes[one.node]:
            self._save(new)
        return new.stage is not one.stage

    def _save(self, one: NodeProgress) -> NodeProgress:
        """Store a node's progress, and say to what it has come."""
        before = self.progress.nodes[one.node]
        self.progress = self.progress.with_node(one)
        self._folder.write(self.progress)
        if one.stage is not before.stage:
            more = f": {one.words}" if one.words else ""
            if one.stage is Stage.EMPTYING:
                more = f"; what runs there may go on until {time.strftime('%H:%M', time.localtime(one.deadline))}"
            self._say(f"{one.node} {_SAID[one.stage]}{more}.")
        elif one.words and one.words != before.words:
            self._say(f"{one.node}: {one.words}.")
        return one

    def _why_ending(self) -> str:
        if self._folder.aborted:
            return "The update ends: no other node begins, and what was only drained is resumed."
        failed = len(self.progress.failures)
        return (
            f"The update stops: {failed} node{' has' if failed == 1 else 's have'} failed, and the plan allows "
            f"{self.plan.stop_after}. No other node begins, and what was only drained is resumed."
        )
