"""Pages of the quotas service."""
