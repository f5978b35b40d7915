"""``carme-hub upgrade --check``: what this release changes for a site (docs/howto/upgrade.md)."""
