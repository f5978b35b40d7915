"""The lease is in PostgreSQL alone."""

from leased_databases import databases
from rig.databases import one_postgres

__all__ = ["databases", "one_postgres"]
