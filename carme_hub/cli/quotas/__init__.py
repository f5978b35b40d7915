"""``carme-hub quotas``."""
