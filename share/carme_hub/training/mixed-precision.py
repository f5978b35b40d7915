"""Mixed precision: half the memory, several times the speed on a GPU

`autocast` computes matrix products in bfloat16, and operations that need it in float32; parameters stay float32. A GPU
without bfloat16 (before A100) uses float16, which needs a `GradScaler`: otherwise small gradients become zero.
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from carme_hub.training import here
from carme_hub.training.digits import digits

EPOCHS = 5
BATCH = 32  # pictures per rank and step
RATE = 0.1
MIXED = True
HALF = torch.bfloat16 if not torch.cuda.is_available() or torch.cuda.is_bf16_supported() else torch.float16
SCALER = torch.amp.GradScaler(enabled=MIXED and HALF is torch.float16)  # disabled where it is not needed


def join():
    """Join the other ranks, or form a group of one; return this rank's device."""
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group(**alone)
    return torch.device(here.device())


def build(device):
    """Return the model and its optimizer. All ranks start with the parameters of rank 0."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    model = DistributedDataParallel(model)
    return model, torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)


def step(model, optimizer, images, labels):
    """Train on one batch, and return its loss."""
    optimizer.zero_grad()
    with torch.autocast(images.device.type, dtype=HALF, enabled=MIXED):  # not around backward()
        loss = nn.functional.cross_entropy(model(images), labels)
    SCALER.scale(loss).backward()
    SCALER.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 100.0)  # after unscale_, or it clips scaled gradients
    SCALER.step(optimizer)  # skips a step where a gradient is not a number
    SCALER.update()
    return loss.detach().float()


def mean(value):
    """Return the mean over all ranks."""
    dist.all_reduce(value)
    return value.item() / dist.get_world_size()


def train():
    """Train, and return the mean loss of each epoch."""
    device = join()
    data = TensorDataset(*digits(2048))
    sampler = DistributedSampler(data)  # each rank has its own part
    batches = DataLoader(data, BATCH, sampler=sampler)
    model, optimizer = build(device)
    history, total = [], EPOCHS * len(batches)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)  # a new order for each epoch
        losses = []
        for number, (images, labels) in enumerate(batches, 1 + epoch * len(batches)):
            losses.append(step(model, optimizer, images.to(device), labels.to(device)))
            here.step(number, total, samples=len(images), loss=losses[-1].item())
        history.append(mean(torch.stack(losses).mean()))
        if here.rank == 0:
            print(f"epoch {epoch + 1}: loss {history[-1]:.3f} on {here.size} ranks, {HALF}", flush=True)
    dist.destroy_process_group()
    return history


if __name__ == "__main__":
    history = train()
