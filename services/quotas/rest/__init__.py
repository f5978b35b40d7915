"""REST of the quotas service."""
