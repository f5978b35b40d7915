"""The scopes of the calendar, in one place for REST and pages; ``carme_hub.config`` describes them to the hub."""

from __future__ import annotations

#: See what is free, one's own bookings, and that there are others.
READ = "custom:carme:reservation:read"
#: See everybody's bookings with owner and title, and the metrics.
READ_ALL = "custom:carme:reservation:read:all"
#: Book, move, take back and give back what is one's own; whom the policy lets book decides the rest.
WRITE = "custom:carme:reservation:write"
#: Decide on bookings that wait, change everybody's, and set maintenance windows.
ADMIN = "custom:carme:reservation:admin"
