"""Parts that all spawners of one hub share: Slurm, admission, the queue of starts, the proxy, TLS."""
