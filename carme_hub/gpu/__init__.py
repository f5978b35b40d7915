"""GPUs as NVIDIA's driver describes them. Runs where the work is: in jobs and in ranks, never in the hub."""
