"""The scopes of what jobs use, in one place for REST and pages; ``carme_hub.config`` describes them to the hub."""

from __future__ import annotations

#: See what one's own sessions and jobs use.
READ = "custom:carme:activity:read"
#: See what everybody's sessions and jobs use, and the metrics.
READ_ALL = "custom:carme:activity:read:all"
#: See what every account had and did not use. Who owns an account in Slurm (a coordinator) sees that account's.
UNUSED = "custom:carme:activity:unused"
