"""The sandbox's Slurm: settings, daemons, virtual hardware, and the cluster as others use it."""
