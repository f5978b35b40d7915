"""The scopes of GPU time, in one place for REST and pages; ``carme_hub.config`` describes them to the hub."""

from __future__ import annotations

READ, READ_ALL = "custom:carme:quota:read", "custom:carme:quota:read:group"
#: What a session's own token has: what is left of its user's sessions, and no more.
READ_SESSION = "custom:carme:quota:read:session"
MANAGE, GRANT, POLICY = "custom:carme:quota:manage", "custom:carme:quota:grant", "custom:carme:quota:policy"
