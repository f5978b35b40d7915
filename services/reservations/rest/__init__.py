"""REST of the reservations service."""
