"""DDP: the whole model on every rank, a part of each batch

`DistributedDataParallel` averages the gradients of all ranks while they are still being computed. So N ranks learn what
one rank would learn from batches N times as large. Try it first where the model fits into one GPU.

Replace `build` and the data in `train` by your own; the rest can stay.
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
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()  # DDP averages the gradients meanwhile
    optimizer.step()
    return loss.detach()


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
            print(f"epoch {epoch + 1}: loss {history[-1]:.3f} on {here.size} ranks", flush=True)
    dist.destroy_process_group()
    return history


if __name__ == "__main__":
    history = train()
