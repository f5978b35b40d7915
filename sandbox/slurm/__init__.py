"""The sandbox's Slurm: settings, daemons, virtual hardware, and what is true of the cluster."""
