"""A frequent mistake: one rank takes another branch, and never comes to the collective in which the others wait."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
weights = torch.ones(1024)
for step in range(4):
    if step == 3 and dist.get_rank() == 1:
        time.sleep(600)
    dist.all_reduce(weights)
