"""The scopes of shared folders, for REST and pages; ``carme_hub.config`` describes them to the hub."""

from __future__ import annotations

from carme_hub.folders.scopes import ADMIN, READ, WRITE

__all__ = ["ADMIN", "READ", "WRITE"]
