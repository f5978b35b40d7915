"""``carme-hub console sessions | jobs | nodes | messages | starts | acts``: what the console shows."""

from __future__ import annotations

import time
from typing import Any, ClassVar
from urllib.parse import urlencode

from traitlets import Bool, Integer, Unicode

from carme_hub.cli.base import UsageError, table
from carme_hub.cli.hub_client import HubClient
from carme_hub.cli.hub_command import HubTask

ROOT = "/carme/console"


class ConsoleTask(HubTask):
    """What the commands share."""

    async def work(self) -> int:
        """Open the hub and do the task."""
        async with HubClient(self.address(), self.token(), self.ca) as hub:
            return await self.task(hub)

    async def task(self, hub: HubClient) -> int:
        """Do the task and return the exit status."""
        raise NotImplementedError


class _List(ConsoleTask):
    """A list: pages of rows, printed as a table."""

    what: ClassVar[str] = ""
    columns: ClassVar[tuple[str, ...]] = ()
    times: ClassVar[frozenset[str]] = frozenset({"since", "ends", "idle_since", "at", "until"})

    page = Integer(1, min=1, help="Which page of 50 rows. The default is the first.").tag(config=True)
    aliases: Any = {**HubTask.aliases, "page": "_List.page"}

    def query(self) -> dict[str, Any]:
        """Return the query of the request."""
        return {"page": self.page}

    async def task(self, hub: HubClient) -> int:
        """Print a page."""
        if self.extra_args:
            raise UsageError(f"{self.extra_args[0]!r} is not an argument of this command; see --help")
        query = urlencode({name: value for name, value in self.query().items() if value not in ("", None)})
        _, found = await hub.request("GET", f"{ROOT}/{self.what}?{query}")
        if self.as_json:
            self.print_json(found)
            return 0
        rows = found[self.what.replace("-", "_")]
        print(table([name.replace("_", " ") for name in self.columns], [self._cells(row) for row in rows]))
        if found.get("count", 0) > len(rows):
            self.note(f"{len(rows)} of {found['count']}; --page shows others")
        return 0

    def _cells(self, row: dict[str, Any]) -> list[str]:
        cells = []
        for name in self.columns:
            value = row.get(name, "")
            if name in self.times:
                value = time.strftime("%Y-%m-%d %H:%M", time.localtime(value)) if value else ""
            elif name == "use":
                value = "" if value is None else f"{value:.0f} %"
            cells.append(str(value))
        return cells


class _Filtered(_List):
    """A list with filters."""

    user = Unicode("", help="Only this user's.").tag(config=True)
    account = Unicode("", help="Only of this account.").tag(config=True)
    partition = Unicode("", help="Only in this partition.").tag(config=True)
    node = Unicode("", help="Only on this node.").tag(config=True)
    state = Unicode("", help="Only in this state.").tag(config=True)
    sort = Unicode("", help="By which column; with a minus before it the largest first.").tag(config=True)
    names: ClassVar[tuple[str, ...]] = ("user", "account", "partition", "node", "state", "sort")
    aliases: Any = {**_List.aliases, **{name: f"_Filtered.{name}" for name in names}}

    def query(self) -> dict[str, Any]:
        """Return page and filters."""
        return {**super().query(), **{name: getattr(self, name) for name in self.names}}


class SessionsApp(_Filtered):
    """List open sessions, companions and batch jobs of all users."""

    name = "carme-hub console sessions"
    description = """List open sessions, companions and batch jobs of all users, with the use of their GPUs in this
    clock hour and the one before."""
    examples = "carme-hub console sessions --use-below 5 --sort -since"
    what = "sessions"
    columns = ("id", "kind", "user", "account", "partition", "node", "profile", "state", "gpus", "use", "since", "ends")

    profile = Unicode("", help="Only of this profile.").tag(config=True)
    use_below = Unicode("", help="Only where the use of GPUs is known and below so many percent.").tag(config=True)
    idle = Bool(False, help="Only idle ones.").tag(config=True)
    aliases: Any = {**_Filtered.aliases, "profile": "SessionsApp.profile", "use-below": "SessionsApp.use_below"}
    flags: Any = {**_Filtered.flags, "idle": ({"SessionsApp": {"idle": True}}, "Only idle ones.")}

    def query(self) -> dict[str, Any]:
        """Return page and filters."""
        idle = "1" if self.idle else ""
        return {**super().query(), "profile": self.profile, "use_below": self.use_below, "idle": idle}


class JobsApp(_Filtered):
    """List all jobs of the cluster that have not ended, whatever way they came."""

    name = "carme-hub console jobs"
    description = "List all jobs of the cluster that have not ended, whatever way they came."
    examples = "carme-hub console jobs --node node1"
    what = "jobs"
    columns = ("id", "name", "user", "account", "partition", "node", "state", "gpus", "since", "ends", "reason")


class NodesApp(_List):
    """List nodes, and how much is on them."""

    name = "carme-hub console nodes"
    description = "List nodes, and how many jobs, and of them jobs of the hub, are on each."
    examples = "carme-hub console nodes"
    what = "nodes"
    columns = ("id", "state", "partition", "gpus", "gpus_used", "cpus", "cpus_used", "sessions", "jobs", "reason")


class MessagesApp(_List):
    """List messages and announcements, the newest first."""

    name = "carme-hub console messages"
    description = "List messages and announcements, the newest first, and how many users have seen each message."
    examples = "carme-hub console messages"
    what = "messages"
    columns = ("id", "kind", "at", "actor", "target", "seen", "recipients", "text")


class StartsApp(_List):
    """List the rules that stop new starts now."""

    name = "carme-hub console starts"
    description = "List the rules that stop new starts now."
    examples = "carme-hub console starts"
    what = "start-stops"
    columns = ("id", "at", "actor", "profile", "partition", "until", "reason")


class ActsApp(_List):
    """List what administrators have done, the newest first."""

    name = "carme-hub console acts"
    description = "List what administrators have done, the newest first: who, to what, why, and what came of it."
    examples = "carme-hub console acts --actor ada"
    what = "acts"
    columns = ("at", "actor", "action", "target", "reason", "outcome")

    action = Unicode("", help="Only these, such as drain-node.").tag(config=True)
    actor = Unicode("", help="Only by this user.").tag(config=True)
    aliases: Any = {**_List.aliases, "action": "ActsApp.action", "actor": "ActsApp.actor"}

    def query(self) -> dict[str, Any]:
        """Return page and filters."""
        return {**super().query(), "action": self.action, "actor": self.actor}
