"""``carme-hub disk``."""
