"""The custom scopes of GPU time, for REST and pages; ``carme_hub.config`` describes them to the hub."""

from __future__ import annotations

READ, READ_ALL = "custom:carme:quota:read", "custom:carme:quota:read:group"
#: The scope of a session's own token: the remaining time of its user's sessions, and nothing else.
READ_SESSION = "custom:carme:quota:read:session"
MANAGE, GRANT, POLICY = "custom:carme:quota:manage", "custom:carme:quota:grant", "custom:carme:quota:policy"
