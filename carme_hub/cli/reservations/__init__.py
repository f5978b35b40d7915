"""``carme-hub reservations``: the calendar, asked of the reservations service by REST."""
