"""``carme-hub users lock | unlock | locked``: who may not log in, whatever the hub's settings say."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import quote

from traitlets import Unicode

from carme_hub.cli.base import YES_FLAG, UsageError, positional_arguments, table
from carme_hub.cli.hub_client import HubClient
from carme_hub.cli.hub_command import HubTask

ROOT = "/carme/console"
REASON_NEEDED = "say why with --reason; it is kept in the audit log"


class _LockChange(HubTask):
    """Locks or unlocks; ``--reason`` is kept in the audit log."""

    reason = Unicode("", help="Why; it is kept in the audit log.").tag(config=True)
    aliases: Any = {**HubTask.aliases, "reason": "_LockChange.reason"}
    flags: Any = {**HubTask.flags, **YES_FLAG}

    async def change(self, what: str, question: str, said: str) -> int:
        """Do it, and print that."""
        (user,) = positional_arguments(self, "NAME")
        if not self.reason.strip():
            raise UsageError(REASON_NEEDED)
        if question:
            self.confirm(question.format(user=user))
        async with HubClient(self.address(), self.token(), self.ca) as hub:
            path = f"{ROOT}/users/{quote(user, safe='')}/{what}"
            _, found = await hub.request("POST", path, {"reason": self.reason})
        if self.as_json:
            self.print_json(found)
        else:
            print(said.format(user=user))
        return 0


class LockApp(_LockChange):
    """Keep a user out of the hub."""

    name = "carme-hub users lock"
    description = """Keep a user out of the hub: their logins are refused at once, their tokens within half a minute,
    and their sessions end within CarmeAuthenticator.revoke_interval, as with a closed account. The token needs the
    scope custom:carme:console:operate."""
    examples = 'carme-hub users lock alice --reason "Her contract has ended."'

    async def work(self) -> int:
        """Lock the user."""
        question = "Lock {user}? Their sessions end, and what is not saved in them is lost."
        return await self.change("lock", question, "{user} is locked.")


class UnlockApp(_LockChange):
    """Let a user in again."""

    name = "carme-hub users unlock"
    description = """Let a user in again who was locked, where the hub's settings allow them. The token needs the scope
    custom:carme:console:operate."""
    examples = 'carme-hub users unlock alice --reason "She stays until June."'

    async def work(self) -> int:
        """Unlock the user."""
        return await self.change("unlock", "", "{user} is not locked any more.")


class LockedApp(HubTask):
    """List the users who are locked."""

    name = "carme-hub users locked"
    description = "List the users who are locked. The token needs the scope custom:carme:console:read."
    examples = "carme-hub users locked"

    async def work(self) -> int:
        """List them."""
        positional_arguments(self)
        async with HubClient(self.address(), self.token(), self.ca) as hub:
            _, found = await hub.request("GET", f"{ROOT}/locked-users")
        if self.as_json:
            self.print_json(found)
            return 0
        rows = [
            (one["user"], time.strftime("%Y-%m-%d %H:%M", time.localtime(one["at"])), one["actor"], one["reason"])
            for one in found["locked"]
        ]
        print(table(("user", "since", "by", "why"), rows) if rows else "Nobody is locked.")
        return 0
