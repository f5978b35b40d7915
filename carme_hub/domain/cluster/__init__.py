"""Slurm as we see it: resources, jobs, states and reasons. Pure."""
