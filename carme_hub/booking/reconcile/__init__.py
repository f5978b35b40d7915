"""Slurm is made to have what the calendar has, and what cannot be kept is moved or told."""
