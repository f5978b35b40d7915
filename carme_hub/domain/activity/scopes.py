"""The scopes of what jobs use, and the roles that have them; ``configure`` gives them to the hub."""

from __future__ import annotations

from typing import Any

from carme_hub.domain.quotas.group_names import ROLE_GROUP

#: The scopes that the activity service checks, besides access to the service itself.
ACTIVITY_SCOPES: dict[str, dict[str, Any]] = {
    "custom:carme:activity:read": {"description": "See what one's own sessions use: GPUs, CPUs, memory"},
    "custom:carme:activity:read:all": {
        "description": "See what everybody's sessions use",
        "subscopes": ["custom:carme:activity:read"],
    },
    "custom:carme:activity:unused": {"description": "See what every account had and did not use"},
}
ACTIVITY_ROLES: tuple[dict[str, Any], ...] = (
    {
        "name": "activity-admin",
        "description": "Sees what every account had and did not use",
        "scopes": ["custom:carme:activity:unused"],
        "groups": [ROLE_GROUP + "admin"],
    },
    {
        "name": "activity-reader",
        "description": "Sees what everybody's sessions use",
        "scopes": ["custom:carme:activity:read:all"],
        "groups": [ROLE_GROUP + "admin", ROLE_GROUP + "operator"],
    },
)
