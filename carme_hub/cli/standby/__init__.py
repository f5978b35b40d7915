"""``carme-hub standby``: run the hub of a site with two hosts, on one of them at a time (docs/explanation/two-hubs.md)."""
