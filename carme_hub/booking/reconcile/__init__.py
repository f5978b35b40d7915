"""Slurm is made to have what the calendar has."""
