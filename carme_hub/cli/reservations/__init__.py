"""``carme-hub reservations``."""
