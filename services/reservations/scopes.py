"""The scopes of the calendar, in one place for REST and pages; ``carme_hub.config`` describes them to the hub."""

from __future__ import annotations

#: See free GPUs, one's own bookings, and the times of others.
READ = "custom:carme:reservation:read"
#: See all bookings with owner and title, and the metrics.
READ_ALL = "custom:carme:reservation:read:all"
#: Book, and move, cancel and release one's own bookings, within the policy.
WRITE = "custom:carme:reservation:write"
#: Decide on pending bookings, change all bookings, and plan maintenance.
ADMIN = "custom:carme:reservation:admin"
