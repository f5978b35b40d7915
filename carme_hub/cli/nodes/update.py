"""``carme-hub nodes update``: update nodes in turn, by a plan; the same command goes on after a crash."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import time
from pathlib import Path
from typing import Any

from traitlets import Bool, Float, Unicode

from carme_hub.cli.base import YES_FLAG, UsageError, positional_arguments, table
from carme_hub.cli.hub_client import HubClient
from carme_hub.cli.hub_command import HubTask
from carme_hub.cli.reservations.times import local_zone
from carme_hub.domain.nodes import progress as steps
from carme_hub.domain.nodes.plan import Plan
from carme_hub.domain.nodes.progress import Progress, Stage
from carme_hub.errors import CarmeError, Refused

from .hub_nodes import HubNodes
from .plan_file import read_plan
from .progress_file import ProgressFolder
from .rolling import RollingUpdate

#: Seconds between two looks at a process that ends an update.
_LOOK = 0.5


class UpdateApp(HubTask):
    """Update nodes in turn, by a plan."""

    name = "carme-hub nodes update"
    description = """Update nodes in turn, by a plan (YAML): each is drained, whoever is on it is told and can go on
    elsewhere, the site's own command runs on this machine once it is empty, and it is resumed where it is well. Nodes
    that fail stay drained, with the reason; it stops where more fail than the plan allows. What has been done is in
    PLAN.update: the same command goes on after a crash or a restart of the hub. The token needs the scope
    custom:carme:console:operate. Exit status: 0 all nodes are updated, 1 some are not, 2 it could not go on."""
    examples = """carme-hub nodes update kernel.yaml --dry-run
    carme-hub nodes update kernel.yaml
    carme-hub nodes update kernel.yaml --status"""

    dry_run = Bool(False, help="Show what would be done, and who is on the nodes; do nothing.").tag(config=True)
    status = Bool(False, help="Show how far it has come; do nothing.").tag(config=True)
    abort = Bool(
        False,
        help="""End it: no other node begins, what was only drained is resumed, and what has begun is finished. Also
        where another process is at it.""",
    ).tag(config=True)
    retry = Bool(False, help="Begin again with the nodes that failed or were left.").tag(config=True)
    go_on = Bool(False, help="Leave the nodes that failed as they are, and go on with the others.").tag(config=True)
    anew = Bool(False, help="Begin anew with all nodes, after an update that has ended.").tag(config=True)
    folder = Unicode("", help="Where its progress and its commands' output are. The default is PLAN.update.").tag(
        config=True
    )
    every = Float(10.0, min=0.01, help="Seconds between two looks at a node that has to wait.").tag(config=True)
    aliases: Any = {**HubTask.aliases, "folder": "UpdateApp.folder", "every": "UpdateApp.every"}
    flags: Any = {
        **HubTask.flags,
        **YES_FLAG,
        "dry-run": ({"UpdateApp": {"dry_run": True}}, "Show what would be done; do nothing."),
        "status": ({"UpdateApp": {"status": True}}, "Show how far it has come; do nothing."),
        "abort": ({"UpdateApp": {"abort": True}}, "End it; what was only drained is resumed."),
        "retry": ({"UpdateApp": {"retry": True}}, "Begin again with the nodes that failed or were left."),
        "go-on": ({"UpdateApp": {"go_on": True}}, "Leave the nodes that failed, and go on with the others."),
        "anew": ({"UpdateApp": {"anew": True}}, "Begin anew with all nodes."),
    }

    async def work(self) -> int:
        """Do it, or show it."""
        (name,) = positional_arguments(self, "PLAN")
        if sum((self.dry_run, self.status, self.abort)) > 1:
            raise UsageError("give one of --dry-run, --status and --abort")
        plan = read_plan(Path(name), local_zone() or "UTC")
        store = ProgressFolder(Path(self.folder or f"{name}.update"))
        if self.status:
            return self._show(self._known(store, name))
        async with (
            HubClient(self.address(), self.token(), self.ca) as hub,
            HubClient(self.address(), self.token(), self.ca, service="reservations") as calendar,
        ):
            nodes = HubNodes(hub, calendar)
            await nodes.check_access()
            if self.dry_run:
                return await self._show_plan(plan, nodes, store.read())
            if self.abort:
                self._known(store, name)
                await self._end_others(store)
            elif not store.lock():
                raise Refused("The update is going on in another process; --status shows how far.", reason="running")
            return await self._run(plan, nodes, store, name)

    async def _end_others(self, store: ProgressFolder) -> None:
        """Wait until the process that is at the update has ended it; then this one has the lock."""
        store.abort()
        locked = store.lock()
        if not locked:
            self.note("Another process is at it, and ends it.")
        for _ in iter(lambda: locked or store.lock(), True):
            await asyncio.sleep(_LOOK)
        store.abort()  # the other one has taken its mark away

    async def _run(self, plan: Plan, nodes: HubNodes, store: ProgressFolder, name: str) -> int:
        progress = self._begun(plan, store, name)
        if not self.abort:
            store.clear_abort()
        store.write(progress)
        update = RollingUpdate(plan, nodes, store, progress, self._say, every=self.every)
        try:
            progress = await update.run()
        except BaseException:
            self.note(f"The update is not over; this goes on with it: {self._command(name)}")
            raise
        store.clear_abort()
        if progress.is_stopped(plan):
            self.note(
                "Look at the nodes that failed. Then add --retry to begin again with them, or --go-on to leave them."
            )
        return self._show(progress)

    def _begun(self, plan: Plan, store: ProgressFolder, name: str) -> Progress:
        """Return the progress from which the update goes on."""
        earlier, now = store.read(), time.time()
        if earlier is None or (self.anew and not earlier.active):
            groups = "1 group" if len(plan.groups) == 1 else f"{len(plan.groups)} groups"
            self.confirm(f"Update {len(plan.nodes)} nodes in {groups} ({plan.title})?")
            return steps.begin(plan, now)
        if self.anew:
            raise UsageError(f"the update is not over. End it first: {self._command(name)} --abort")
        if earlier.title != plan.title and earlier.active:
            raise UsageError(
                f"the update “{earlier.title}” is not over, so the plan must keep that title. End it with --abort."
            )
        progress = steps.continued(plan, earlier)
        if self.retry:
            progress = steps.retried(progress, now)
        return steps.accepted(progress) if self.go_on else progress

    def _known(self, store: ProgressFolder, name: str) -> Progress:
        found = store.read()
        if found is None:
            raise CarmeError(f"no update of {name} has begun: there is nothing in {store.path}")
        return found

    def _command(self, name: str) -> str:
        more = ["--folder", self.folder] if self.folder else []
        return shlex.join([*self.name.split(), name, *more])

    # -- text ---------------------------------------------------------------------------------------------------------

    def _say(self, line: str) -> None:
        self.note(f"{time.strftime('%H:%M:%S')} {line}")

    def _show(self, progress: Progress) -> int:
        """Print the progress; return 0 where all nodes are updated."""
        if self.as_json:
            self.print_json(steps.to_json(progress))
        else:
            rows = [
                [one.group, one.node, one.stage.value, time.strftime("%a %H:%M", time.localtime(one.at)), one.words]
                for one in progress.nodes.values()
            ]
            print(f"{progress.title}. {steps.summary(progress)}")
            print(table(("group", "node", "stage", "since", ""), rows))
        return 0 if all(one.stage is Stage.DONE for one in progress.nodes.values()) else 1

    async def _show_plan(self, plan: Plan, nodes: HubNodes, earlier: Progress | None) -> int:
        """Print what would be done; return 1 where something is in the way."""
        known = steps.continued(plan, earlier) if earlier is not None else steps.begin(plan, time.time())
        rows: list[dict[str, Any]] = []
        problems: list[str] = []
        for one in known.nodes.values():
            now = await nodes.node(one.node)
            row: dict[str, Any] = {"group": one.group, "node": one.node, "stage": one.stage.value}
            if now is None:
                problems.append(f"Slurm has no node {one.node}.")
            else:
                _, users = await nodes.users_on(one.node) if now.jobs else (0, ())
                row |= {"state": " ".join(now.state), "jobs": now.jobs, "users": list(users), "why": now.why}
            rows.append(row)
        for command in (plan.command, plan.check):
            if command is not None and shutil.which(command.argv[0]) is None:
                problems.append(f"There is no program {command.argv[0]} on this machine.")
        first = plan.nodes[0]
        if self.as_json:
            check = plan.check.of(first) if plan.check is not None else []
            document = {"title": plan.title, "nodes": rows, "command": plan.command.of(first), "check": check}
            self.print_json({**document, "problems": problems})
            return 1 if problems else 0
        print(f"{plan.title}. Nothing is done.")
        for group in plan.groups:
            print(f"{group.name}: {len(group.nodes)} nodes, at most {group.at_once} at a time.")
        columns = ("group", "node", "stage", "state", "jobs", "users", "why")
        lines = [{**row, "users": ", ".join(row.get("users", ()))} for row in rows]
        print(table(columns, [[line.get(name, "") for name in columns] for line in lines], "jobs"))
        print(f"On {first}: {shlex.join(plan.command.of(first))}")
        if plan.check is not None:
            print(f"Its check: {shlex.join(plan.check.of(first))}")
        for problem in problems:
            self.note(problem)
        return 1 if problems else 0
