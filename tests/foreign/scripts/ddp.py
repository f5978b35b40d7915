"""As in PyTorch's tutorial "Multinode Training": DDP, a DistributedSampler, a snapshot; started by torchrun there."""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
local_rank, rank = int(os.environ["LOCAL_RANK"]), int(os.environ["RANK"])
device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
if device.type == "cuda":
    torch.cuda.set_device(local_rank)
torch.manual_seed(0)
data = TensorDataset(torch.randn(256, 20), torch.randn(256, 1))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=16, sampler=sampler)
model = DistributedDataParallel(torch.nn.Linear(20, 1).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
snapshot = sys.argv[1]
for epoch in range(3):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
        loss.backward()
        optimizer.step()
    if rank == 0:
        torch.save({"model": model.module.state_dict(), "epoch": epoch}, snapshot)
weights = [torch.zeros_like(model.module.weight) for _ in range(dist.get_world_size())]
dist.all_gather(weights, model.module.weight.data)
assert all(torch.equal(each, weights[0]) for each in weights)
if rank == 0:
    assert torch.load(snapshot)["epoch"] == 2
    print("world", dist.get_world_size(), "local", os.environ["LOCAL_WORLD_SIZE"], "same weights")
dist.destroy_process_group()
