"""SQLAlchemy lives here and nowhere else."""
