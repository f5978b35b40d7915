"""``carme-hub upgrade --check``: what this release changes for a site, before anything is changed (docs/howto/upgrade.md)."""
