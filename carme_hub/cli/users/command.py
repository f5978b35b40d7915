"""``carme-hub users``: end what somebody who leaves has here; lock users, and let them in again."""

from __future__ import annotations

from typing import Any

from carme_hub.cli.base import CommandGroup


class UsersApp(CommandGroup):
    """People who leave, and users who may not log in."""

    name = "carme-hub users"
    description = """End what somebody who leaves has here, and lock users. --hub is the hub's address as in a browser.
    The token is an administrator's, or a service's with the scopes that the commands name. Each act needs --reason, and
    is in the audit log. Exit status: 0 done, 1 refused or something is left, 2 the hub did not answer."""

    subcommands: Any = {
        "offboard": (
            "carme_hub.cli.users.offboard.OffboardApp",
            "End sessions, jobs, bookings, tokens and holds of somebody who leaves",
        ),
        "lock": ("carme_hub.cli.users.locks.LockApp", "Keep a user out of the hub"),
        "unlock": ("carme_hub.cli.users.locks.UnlockApp", "Let a user in again"),
        "locked": ("carme_hub.cli.users.locks.LockedApp", "List the users who are locked"),
    }
