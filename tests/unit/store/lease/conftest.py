"""The lease is in PostgreSQL alone."""

from leased_databases import databases, host
from rig.databases import one_postgres

__all__ = ["databases", "host", "one_postgres"]
