"""What is done on one node in each stage of a rolling update. Each step can be taken again after a crash.

A step stores what it is about to do, does it, and returns what the node has come to. ``HubUnreachable`` goes through:
it proves nothing, and the step is taken again later. The hub itself records each act; the site's command and check are
recorded through it, the command before it is started.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from carme_hub.cli.hub_client import HubRefused
from carme_hub.domain.cluster.node_reasons import UPDATE, UPDATE_FAILED, UPDATE_FAILED_WORDS, UPDATE_WORDS
from carme_hub.domain.nodes.plan import Plan
from carme_hub.domain.nodes.progress import NodeProgress, Stage

from . import site_command
from .hub_nodes import HubNodes, NodeNow

#: Seconds after a drain or a resume in which the hub may still show the node as it was before.
SETTLE_SECONDS = 15.0
#: Seconds that sessions stopped at the deadline have to end.
STOP_SECONDS = 300.0
#: Statuses with which the hub refuses the token: nothing can go on, and no node is to blame.
NO_ACCESS = (401, 403)
_MOST_REASON = 270
#: The longest time for which the hub keeps a message.
_MOST_MESSAGE = 89 * 86_400


class NodeSteps:
    """The steps of one update.

    Args:
        began: when the update began, which is in the keys of what must be done once. folder: of its files.
        save: stores a node's progress, before anything is done.
    """

    def __init__(
        self,
        plan: Plan,
        hub: HubNodes,
        began: float,
        folder: Path,
        save: Callable[[NodeProgress], NodeProgress],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._plan, self._hub, self._began, self._folder = plan, hub, began, folder
        self._save, self._now = save, clock

    async def step(self, one: NodeProgress, *, ending: bool) -> NodeProgress:
        """Take a node's next step; return it as it was where it has to wait.

        Args:
            ending: the update ends: what was only drained is resumed, and what has begun is finished.

        Raises:
            HubUnreachable: it is not known what came of it. HubRefused: the hub does not take the token.
        """
        steps = {
            Stage.DRAINING: self._drain,
            Stage.EMPTYING: self._wait,
            Stage.UPDATING: self._update,
            Stage.CHECKING: self._check,
            Stage.RESUMING: self._resume,
        }
        try:
            return await steps[one.stage](one, ending)
        except HubRefused as error:
            if error.status in NO_ACCESS:
                raise
            return await self._failed(one, f"the hub refused: {error.message}")

    # -- before the update --------------------------------------------------------------------------------------------

    async def _drain(self, one: NodeProgress, ending: bool) -> NodeProgress:
        row = await self._hub.node(one.node)
        if row is None:
            return one.to(Stage.FAILED, self._now(), "Slurm has no such node")
        if ending:
            if row.drained and self._is_ours(row):
                return one.to(Stage.RESUMING, self._now(), then=Stage.WAITING)
            return one.to(Stage.WAITING, self._now())
        if row.drained and not self._is_ours(row) and self._plan.drained == "skip":
            return one.to(Stage.LEFT, self._now(), f"it was out of service already: {row.why or 'no reason is given'}")
        await self._hub.drain(one.node, self._reason)
        now = self._now()
        return one.to(Stage.EMPTYING, now, drained=now, deadline=self._plan.deadline(now))

    async def _wait(self, one: NodeProgress, ending: bool) -> NodeProgress:
        row = await self._hub.node(one.node)
        if row is None:
            return await self._failed(one, "Slurm has no such node any more")
        if not row.drained or not self._is_ours(row):
            if self._now() < one.drained + SETTLE_SECONDS:
                return one
            await self._call_off(one)
            words = f"drained it for another reason: {row.why}" if row.drained else "resumed it"
            return one.to(Stage.LEFT, self._now(), f"somebody {words}")
        if ending:
            return one.to(Stage.RESUMING, self._now(), then=Stage.WAITING)
        if row.is_empty:
            return one.to(Stage.UPDATING, self._now(), run="")
        if one.message in ("", "asked"):
            return await self._tell(one)
        if self._plan.reservation and one.reservation in ("", "asked") and self._now() < one.deadline:
            return await self._reserve(one)
        return await self._at_deadline(one, row) if self._now() >= one.deadline else one

    async def _tell(self, one: NodeProgress) -> NodeProgress:
        text = self.text_for_users(one)
        if one.message == "asked" and (known := await self._hub.told(one.node, text, one.drained)):
            return replace(one, message=known)
        one = self._save(replace(one, message="asked"))
        ends = min(max(one.deadline, self._now() + 600), self._now() + _MOST_MESSAGE)
        try:
            id = await self._hub.tell(one.node, text, self._plan.title, ends, mail=self._plan.mail)
        except HubRefused as error:
            if error.status in NO_ACCESS:
                raise
            return replace(one, message="none", words=f"nobody was told: {error.message}")
        return replace(one, message=id or "none")

    def text_for_users(self, one: NodeProgress) -> str:
        """Return what users on a node read."""
        until = time.strftime("%a %d %b, %H:%M", time.localtime(one.deadline))
        own = self._plan.text.replace("{node}", one.node).replace("{until}", until)
        if own:
            return own
        then = {
            "resume": "If something still runs there then, this node is left as it is.",
            "stop-sessions": "Sessions that still run there then are stopped.",
            "update": "The update begins then, and what still runs there may be ended by it.",
        }[self._plan.at_deadline]
        return (
            f"Node {one.node} is being updated: {self._plan.title}. Nothing new starts there; what runs there can go "
            f"on until {until}. {then} To go on elsewhere now, save your work and restart your session from the hub's "
            "home page: it starts on another node."
        )

    async def _reserve(self, one: NodeProgress) -> NodeProgress:
        key = f"carme-update-{int(self._began)}-{int(one.drained)}-{one.node}"
        one = self._save(replace(one, reservation="asked"))
        try:
            id = await self._hub.reserve(one.node, one.deadline, self._plan.reservation, self._plan.title, key)
        except HubRefused as error:
            if error.status == 401:
                raise
            return replace(one, reservation="none", words=f"it is not in the calendar: {error.message}")
        return replace(one, reservation=id)

    async def _at_deadline(self, one: NodeProgress, row: NodeNow) -> NodeProgress:
        if self._plan.at_deadline == "update":
            return one.to(Stage.UPDATING, self._now(), run="")
        if self._plan.at_deadline == "stop-sessions":
            if not one.stopped:
                one = self._save(replace(one, stopped=self._now()))
            if self._now() < one.stopped + STOP_SECONDS:
                await self._hub.stop_sessions(one.node, f"The node is updated: {self._plan.title}")
                return one
        _, users = await self._hub.users_on(one.node)
        jobs = "1 job was" if row.jobs == 1 else f"{row.jobs} jobs were"
        whose = f" ({', '.join(users[:5])})" if users else ""
        words = f"{jobs} still on it at the deadline{whose}"
        return one.to(Stage.RESUMING, self._now(), words, then=Stage.LEFT)

    # -- the update ---------------------------------------------------------------------------------------------------

    async def _update(self, one: NodeProgress, ending: bool) -> NodeProgress:  # noqa: ARG002
        command = self._plan.command
        argv = command.of(one.node)
        if not one.run:
            one = self._save(replace(one, run=f"{one.node}/command-{time.time_ns()}"))
        folder = self._folder / one.run
        if not site_command.was_started(folder):
            await self._hub.note(one.node, self._plan.title, f"Started: {shlex.join(argv)}"[:900], "")
            problem = self._start(folder, argv, command.limit, one)
            return await self._failed(one, problem) if problem else one
        if (end := site_command.ended(folder)) is None:
            return one
        if end.problem:
            outcome = f"the site's command {end.problem}"
            await self._hub.note(one.node, self._plan.title, "The site's command", outcome)
            return await self._failed(one, outcome)
        await self._hub.note(one.node, self._plan.title, f"The site's command, in {end.seconds:.0f} s", "")
        return one.to(Stage.CHECKING, self._now(), run="")

    async def _check(self, one: NodeProgress, ending: bool) -> NodeProgress:  # noqa: ARG002
        problem = ""
        check, row = self._plan.check, await self._hub.node(one.node)
        # A node that restarted is down until it is resumed where ReturnToService is not 2; the site's check says more.
        if row is None or not (row.is_well or (check is not None and row.answers)):
            problem = f"Slurm shows it as {' '.join(row.state)}" if row is not None else "Slurm has no such node"
        elif check is not None:
            folder = self._folder / one.run
            if not one.run:
                one = self._save(replace(one, run=f"{one.node}/check-{time.time_ns()}"))
                start_problem = self._start(self._folder / one.run, check.of(one.node), check.limit, one)
                return await self._failed(one, start_problem) if start_problem else one
            if not site_command.was_started(folder):
                return replace(one, run="")
            if (end := site_command.ended(folder)) is None:
                return one
            problem = f"its health check {end.problem}" if end.problem else ""
        if not problem:
            await self._hub.note(one.node, self._plan.title, "The node is well", "")
            return one.to(Stage.RESUMING, self._now(), then=Stage.DONE, run="")
        if self._now() < one.at + self._plan.check_within:  # it may be restarting
            return replace(one, words=problem, run="")
        await self._hub.note(one.node, self._plan.title, "The node is not well", problem)
        return await self._failed(one, problem)

    def _start(self, folder: Path, argv: list[str], limit: int, one: NodeProgress) -> str:
        """Start a command; return why it was not started, "" = it was."""
        try:
            site_command.start(folder, argv, limit, {"NODE": one.node})
        except OSError as error:
            return f"its command cannot be started: {error}"
        return ""

    # -- after the update ---------------------------------------------------------------------------------------------

    async def _resume(self, one: NodeProgress, ending: bool) -> NodeProgress:  # noqa: ARG002
        row, words, now = await self._hub.node(one.node), one.words, self._now()
        if row is None:
            return await self._failed(one, "Slurm has no such node any more")
        settling = bool(one.resumed) and now < one.resumed + SETTLE_SECONDS
        if row.drained and self._is_ours(row):
            if settling:
                return one
            await self._call_off(one)
            said = {Stage.DONE: "it is updated", Stage.LEFT: words}.get(one.then, "the update ends before this node")
            await self._hub.resume(one.node, f"{self._plan.title}: {said}"[:_MOST_REASON])
            return replace(one, resumed=self._now())
        if not one.resumed:
            await self._call_off(one)
        if row.drained:
            words = f"{words + '; ' if words else ''}it stays drained, by somebody else: {row.why}"
        elif one.then is Stage.DONE and not row.is_well:
            if settling:
                return one
            return await self._failed(one, f"Slurm shows it as {' '.join(row.state)} after it was resumed")
        if one.then is Stage.WAITING:
            return NodeProgress(one.node, one.group, at=now)
        return one.to(one.then, now, words)

    async def _failed(self, one: NodeProgress, words: str) -> NodeProgress:
        """Have the node stay drained, with why; a node that cannot be drained is said to have failed, too."""
        try:
            await self._hub.drain(one.node, f"{UPDATE_FAILED}{self._plan.title}: {words}"[:_MOST_REASON])
            await self._call_off(one)
        except HubRefused as error:
            if error.status in NO_ACCESS:
                raise
            words = f"{words}; and it is not drained: {error.message}"
        return one.to(Stage.FAILED, self._now(), words)

    async def _call_off(self, one: NodeProgress) -> None:
        """Take back what users and the calendar were told of the node."""
        if one.message not in ("", "none", "asked"):
            await self._hub.withdraw(one.message, f"{self._plan.title}: {one.node} is through")
        if one.reservation not in ("", "none", "asked"):
            await self._hub.unreserve(one.reservation, self._plan.title, f"carme-update-{one.reservation}")

    @property
    def _reason(self) -> str:
        return f"{UPDATE}{self._plan.title}"

    def _is_ours(self, row: NodeNow) -> bool:
        """Return whether this update drained it."""
        title = self._plan.title  # the hub adds who drained it: "Update: Kernel (ada)"
        return row.why.startswith((f"{UPDATE_WORDS}{title} (", f"{UPDATE_FAILED_WORDS}{title}: "))
