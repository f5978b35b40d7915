"""Slurm through its commands."""
