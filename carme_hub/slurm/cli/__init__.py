"""Slurm through its commands: one process for each question, an answer understood whole or not at all."""
