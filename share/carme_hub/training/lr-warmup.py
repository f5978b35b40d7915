"""A learning rate for many ranks: scaled, with a warm-up

N ranks use batches N times as large, and so take N times fewer steps. A learning rate N times as large compensates for
that, except in the first steps, whose gradients are nearly random. In our test a small network on four ranks diverged
with the plain N-fold rate, and did not with a warm-up. After the warm-up the rate falls along a cosine.
"""

import math
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from carme_hub.training import here
from carme_hub.training.digits import digits

EPOCHS = 6
BATCH = 32  # pictures per rank and step
RATE = 0.05  # for one rank
WARM = 0.25  # of all steps
HIGHEST = 16  # times RATE: larger batches need other optimizers (LARS, LAMB)


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


def factor(done, total, size):
    """Return the factor of RATE after so many steps: from 1 up to the number of ranks, and down to 0."""
    top, warm = min(size, HIGHEST), WARM * total
    if done < warm:
        return 1 + (top - 1) * done / warm
    return top * (1 + math.cos(math.pi * (done - warm) / (total - warm))) / 2


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
    schedule = LambdaLR(optimizer, lambda done: factor(done, total, here.size))
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)  # a new order for each epoch
        losses = []
        for number, (images, labels) in enumerate(batches, 1 + epoch * len(batches)):
            rate = schedule.get_last_lr()[0]
            losses.append(step(model, optimizer, images.to(device), labels.to(device)))
            schedule.step()
            here.step(number, total, samples=len(images), loss=losses[-1].item(), rate=rate)
        history.append(mean(torch.stack(losses).mean()))
        if here.rank == 0:
            print(f"epoch {epoch + 1}: loss {history[-1]:.3f}, rate {rate:.3f} on {here.size} ranks", flush=True)
    dist.destroy_process_group()
    return history


if __name__ == "__main__":
    history = train()
