"""Carme Hub's own database. Only this package uses SQLAlchemy."""
