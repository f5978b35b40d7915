"""Everything that speaks with Slurm, and nothing else does."""
