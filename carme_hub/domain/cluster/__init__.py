"""Slurm's resources, jobs, states and reasons as values. Pure."""
