"""One rank of a run: its program, its heartbeat, and its changes to torch, Horovod and MPI."""
