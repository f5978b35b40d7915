"""The scopes of the console for administrators, and the roles that have them; ``configure`` gives them to the hub."""

from __future__ import annotations

from typing import Any

from carme_hub.domain.quotas.group_names import ROLE_GROUP

#: See everybody's sessions and jobs; send messages; drain nodes and stop new starts. Each includes the one before.
READ, MESSAGE, OPERATE = (f"custom:carme:console:{name}" for name in ("read", "message", "operate"))
#: See the sessions of accounts that one coordinates in Slurm. Every user has it; a session's own token has not.
ACCOUNTS_READ = "custom:carme:account:read"

SCOPES: dict[str, dict[str, Any]] = {
    READ: {"description": "See everybody's sessions and jobs, what they use, and what administrators have done"},
    MESSAGE: {"description": "Send messages to users, and announce something to all", "subscopes": [READ]},
    ACCOUNTS_READ: {"description": "See the sessions, the use and the efficiency of accounts that one owns"},
    OPERATE: {
        "description": "Drain and resume nodes, lock and unlock users, stop and allow new starts",
        "subscopes": [MESSAGE],
    },
}
ROLES: tuple[dict[str, Any], ...] = (
    {
        "name": "console-admin",
        "description": "Uses the console: messages, nodes, new starts",
        "scopes": [OPERATE],
        "groups": [f"{ROLE_GROUP}admin"],
    },
    {
        "name": "console-operator",
        "description": "Sees the console, and sends messages",
        "scopes": [MESSAGE],
        "groups": [f"{ROLE_GROUP}operator"],
    },
)
