"""The scopes of shared folders, in one place for REST, pages and the hub's configuration."""

from __future__ import annotations

from typing import Any

from carme_hub.domain.quotas.group_names import ROLE_GROUP

#: The service's name, and its address below ``/services/``.
FOLDERS = "folders"
#: See one's own folders, those that are shared with one, and datasets.
READ = "custom:carme:folders:read"
#: Make folders, invite, answer invitations.
WRITE = "custom:carme:folders:write"
#: Do all that for everybody's folders.
ADMIN = "custom:carme:folders:admin"

SCOPES: dict[str, dict[str, Any]] = {
    READ: {"description": "See one's own shared folders, those that are shared with one, and datasets"},
    WRITE: {"description": "Make shared folders, invite people, answer invitations", "subscopes": [READ]},
    ADMIN: {"description": "See and change everybody's shared folders", "subscopes": [WRITE]},
}
ROLES: tuple[dict[str, Any], ...] = (
    {
        "name": "folders-admin",
        "description": "Administers everybody's shared folders",
        "scopes": [ADMIN],
        "groups": [ROLE_GROUP + "admin"],
    },
)
#: The role of the service's own token: users and their groups.
SERVICE_ROLE: dict[str, Any] = {
    "name": "folders-service",
    "description": "Lets the folders service read groups",
    "scopes": ["list:users", "read:users:name", "read:users:groups"],
    "services": [FOLDERS],
}
#: The same, where ``CarmeFolders.end_sessions`` lets it end sessions of users whose access to a folder has ended.
SERVICE_ROLE_WITH_ENDS: dict[str, Any] = {**SERVICE_ROLE, "scopes": [*SERVICE_ROLE["scopes"], "delete:servers"]}
