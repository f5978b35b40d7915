"""``carme-hub standby``: run the hub on one of two hosts at a time (docs/explanation/two-hubs.md)."""
