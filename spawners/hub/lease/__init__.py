"""What a hub does that runs under a lease, one of two hubs of a site (docs/explanation/two-hubs.md)."""
