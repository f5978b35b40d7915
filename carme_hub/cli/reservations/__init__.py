"""``carme-hub reservations``: the calendar on the command line, through the reservations service's REST API."""
