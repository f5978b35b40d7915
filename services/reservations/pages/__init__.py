"""Pages of the reservations service."""
