"""FSDP: a sharded model, for models too large for one GPU

Each rank keeps 1/N of the parameters, gradients and optimizer state. `fully_shard` gathers the parameters of a block
before its computation, and frees them afterwards. Use DDP where the model fits into one GPU: it sends less.
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from carme_hub.training import here
from carme_hub.training.digits import digits

EPOCHS = 5
BATCH = 32  # pictures per rank and step
RATE = 0.05
WIDTH, BLOCKS = 64, 2


def join():
    """Join the other ranks, or form a group of one; return this rank's device."""
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group(**alone)
    return torch.device(here.device())


class Block(nn.Module):
    """The part of the model that is gathered at a time."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, values):
        """Return the input plus the output of the layers."""
        return values + self.layers(values)


def build(device):
    """Return the model and its optimizer, both sharded. All ranks start with the parameters of rank 0."""
    model = nn.Sequential(nn.Flatten(), *(Block() for _ in range(BLOCKS)), nn.Linear(WIDTH, 10)).to(device)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)  # before sharding
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for block in model:
        if isinstance(block, Block):
            fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)  # the parameters outside of the blocks
    return model, torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)


def step(model, optimizer, images, labels):
    """Train on one batch, and return its loss."""
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()  # each rank keeps the averaged gradients of its own parameters
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
