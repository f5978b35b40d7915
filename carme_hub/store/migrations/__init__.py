"""Alembic's folder: the migrations from the schemas of earlier releases to this release's."""
