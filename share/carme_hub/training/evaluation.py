"""Evaluation on all ranks, with every picture counted once

`DistributedSampler` repeats pictures until all ranks have the same number. That is right for training, where ranks
wait for each other in every step, and wrong for a score. Here each rank counts its own part of the test set, and the
counts are added up: N ranks get exactly the same score as one.
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

from carme_hub.training import here
from carme_hub.training.digits import digits

EPOCHS = 5
BATCH = 32  # pictures per rank and step
RATE = 0.1
TESTED = 1001


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


@torch.no_grad()
def evaluate(model, data, device):
    """Return how often each digit (row) was classified as each digit (column), over all ranks."""
    model.eval()
    counts = torch.zeros(10, 10, dtype=torch.int64, device=device)
    mine = Subset(data, range(here.rank, len(data), here.size))  # no picture twice; parts may differ by one
    for images, labels in DataLoader(mine, 256):
        guessed = model.module(images.to(device)).argmax(1)  # without DDP: ranks have different numbers of batches
        counts += torch.bincount(labels.to(device) * 10 + guessed, minlength=100).view(10, 10)
    dist.all_reduce(counts)
    model.train()
    return counts


def train():
    """Train, and return the mean loss of each epoch."""
    device = join()
    data, test = TensorDataset(*digits(2048)), TensorDataset(*digits(TESTED, seed=1))
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
        loss = torch.stack(losses).mean()
        dist.all_reduce(loss)
        history.append(loss.item() / here.size)
        counts = evaluate(model, test, device)
        right, of = counts.trace().item(), counts.sum().item()
        if here.rank == 0:
            print(f"epoch {epoch + 1}: loss {history[-1]:.3f}, {right} of {of} right", flush=True)
    if here.rank == 0:
        print("rows: the digit; columns: its classification", counts.cpu().numpy(), sep="\n", flush=True)
    dist.destroy_process_group()
    return history


if __name__ == "__main__":
    history = train()
