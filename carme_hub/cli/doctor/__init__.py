"""``carme-hub doctor``."""
