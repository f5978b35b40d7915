"""Anomalies: their detection in Slurm's records, and people's decisions on them."""
