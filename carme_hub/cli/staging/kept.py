"""``carme-hub staging list | retry | discard``: results of one's sessions that are still on nodes."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from traitlets import Bool, Unicode

from carme_hub.cli.base import UsageError, positional_arguments, table
from carme_hub.cli.hub_client import HubClient
from carme_hub.cli.hub_command import HubTask
from carme_hub.domain.staging.entries import entries_of


def _path(user: str, session: str = "") -> str:
    return f"/carme/users/{quote(user, safe='')}/staging" + (f"/{quote(session, safe='')}" if session else "")


class _StagingTask(HubTask):
    """What the commands share: whose sessions."""

    user = Unicode("", help="Whose sessions. The default is the token's owner.").tag(config=True)
    aliases: Any = {**HubTask.aliases, "user": "_StagingTask.user"}

    async def work(self) -> int:
        """Open the hub and do the task."""
        async with HubClient(self.address(), self.token(), self.ca) as hub:
            return await self.task(hub, self.user or await hub.user())

    async def task(self, hub: HubClient, user: str) -> int:
        """Do the task for this user and return the exit status."""
        raise NotImplementedError


class ListApp(_StagingTask):
    """List what sessions copied."""

    name = "carme-hub staging list"
    description = """List what your sessions copied, the newest first, and what is kept on nodes. Exit status: 0 nothing
    is kept, 1 something is, 2 the hub did not answer."""
    examples = "carme-hub staging list --json"

    async def task(self, hub: HubClient, user: str) -> int:
        """List them."""
        _, found = await hub.request("GET", _path(user))
        rows = found["staging"]
        if self.as_json:
            self.print_json(found)
        elif not rows:
            print(f"No session of {user} has copied data.")
        else:
            head = ("session", "state", "node", "what")
            print(table(head, [(r["session"], r["state"], r["node"], r["said"]) for r in rows]))
        return 1 if any(each["state"] == "kept" for each in rows) else 0


class _Decision(_StagingTask):
    """A decision about one session's results."""

    do = ""

    async def task(self, hub: HubClient, user: str) -> int:
        """Send it."""
        (session,) = positional_arguments(self, "SESSION")
        _, found = await hub.request("POST", _path(user, session), {"do": self.do, **self.more()})
        if self.as_json:
            self.print_json(found)
        else:
            print(f"The node {found['node'] or 'of the session'} learns it at its next try, within minutes.")
        return 0

    def more(self) -> dict[str, Any]:
        """Return the rest of the body."""
        return {}


class RetryApp(_Decision):
    """Have a node try again."""

    name = "carme-hub staging retry"
    description = """Have the node try again to copy results of SESSION to their targets, or to others. Exit status: 0
    told, 1 refused, 2 the hub did not answer."""
    examples = """carme-hub staging retry 0b6…  --to 'run -> /home/alice/rescued'"""
    do = "retry"

    to = Unicode("", help="Other targets: 'NAME -> TARGET', several separated by semicolons.").tag(config=True)
    aliases: Any = {**_StagingTask.aliases, "to": "RetryApp.to"}

    def more(self) -> dict[str, Any]:
        """Return the targets."""
        entries, wrong = entries_of(self.to.replace(";", "\n"), way="out")
        if wrong:
            raise UsageError(f"--to: {wrong}")
        return {"out": entries} if entries else {}


class DiscardApp(_Decision):
    """Have a node remove results."""

    name = "carme-hub staging discard"
    description = """Have the node remove the results of SESSION that have not reached their targets, for good. Exit
    status: as for retry."""
    examples = "carme-hub staging discard 0b6… --yes"
    do = "discard"

    yes = Bool(False, help="Remove them without a question.").tag(config=True)
    flags: Any = {**_StagingTask.flags, "yes": ({"DiscardApp": {"yes": True}}, "Remove them without a question.")}

    async def task(self, hub: HubClient, user: str) -> int:
        """Send it, if it is meant."""
        if not self.yes:
            raise UsageError("results are removed for good; add --yes where that is meant")
        return await super().task(hub, user)
