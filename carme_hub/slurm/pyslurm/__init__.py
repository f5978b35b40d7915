"""The Slurm client over pyslurm (Slurm 25.11), which runs in processes of its own."""
