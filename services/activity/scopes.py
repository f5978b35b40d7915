"""The scopes of what jobs use, in one place for REST and pages; ``carme_hub.config`` describes them to the hub."""

from __future__ import annotations

#: See what one's own sessions use.
READ = "custom:carme:activity:read"
#: See what everybody's sessions use, and the metrics.
READ_ALL = "custom:carme:activity:read:all"
