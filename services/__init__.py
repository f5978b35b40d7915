"""Services that the hub starts: ``quotas`` for GPU time, ``reservations`` for the calendar, and what both share."""
