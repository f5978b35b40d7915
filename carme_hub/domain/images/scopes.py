"""The scopes of images, and the roles that have them; ``configure`` gives them to the hub."""

from __future__ import annotations

from typing import Any

from carme_hub.domain.administration.scopes import MESSAGE
from carme_hub.domain.quotas.group_names import ROLE_GROUP

#: The service's name, and its address below ``/services/``.
SERVICE = "images"
#: See the images that one is offered; offer one's own to one's groups; see all; offer to anybody and retire; and what
#: the program on nodes says and asks.
READ, OFFER, READ_ALL, MANAGE, NODES = (
    f"custom:carme:images:{name}" for name in ("read", "offer", "read:all", "manage", "nodes")
)

SCOPES: dict[str, dict[str, Any]] = {
    READ: {"description": "See the images that one is offered, and which nodes have them"},
    OFFER: {"description": "Offer one's own images to one's groups", "subscopes": [READ]},
    READ_ALL: {
        "description": "See all images, to whom they are offered, and whose sessions use them",
        "subscopes": [READ],
    },
    MANAGE: {"description": "Offer images to anybody, and retire them", "subscopes": [READ_ALL, OFFER]},
    NODES: {"description": "Say which images a node has, and ask which it needs"},
}
ROLES: tuple[dict[str, Any], ...] = (
    {
        "name": "images-admin",
        "description": "Offers images to anybody, and retires them",
        "scopes": [MANAGE],
        "groups": [f"{ROLE_GROUP}admin"],
    },
    {
        "name": "images-reader",
        "description": "Sees all images, and whose sessions use them",
        "scopes": [READ_ALL],
        "groups": [f"{ROLE_GROUP}operator"],
    },
)

#: The role of the service's own token: nodes, and messages to those whose sessions have an image that is retired.
SERVICE_ROLE: dict[str, Any] = {
    "name": "images-service",
    "description": "Lets the images service read nodes, and tell users of retired images",
    "scopes": ["custom:carme:slurm:read", MESSAGE],
    "services": [SERVICE],
}
