"""Alembic's folder: how a database of an earlier release becomes one of this release."""
