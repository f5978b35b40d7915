"""The spawners for Slurm and Docker, their options form, and the hub's own pages and handlers."""
