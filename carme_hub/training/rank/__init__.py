"""What runs in each rank: its program, its heartbeat, and what is put right in torch, Horovod and MPI."""
