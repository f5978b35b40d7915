"""Slurm 25.11 through pyslurm, in processes of its own."""
