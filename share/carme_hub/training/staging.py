"""Data on the node's own disk, in shards

Thousands of small files in a home folder are slow, and slow down all users. Here the data is a few large files
(*shards*). Each rank copies its own shards to the node's scratch folder once, and reads them from there, mapped into
memory, in a new order for each epoch. All ranks do the same number of steps; otherwise some would wait forever.

This template creates the shards at its first run; replace them by your own.
"""

import os
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from carme_hub.training import here
from carme_hub.training.digits import digits

EPOCHS = 5
BATCH = 32  # pictures per rank and step
RATE = 0.1
SHARDS = Path(os.environ.get("SHARDS", "digits-shards"))  # in a folder that all nodes see
COUNT, EACH = 16, 128


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


def make_shards():
    """Write missing shards; each is written completely or not at all."""
    SHARDS.mkdir(exist_ok=True)
    for number in range(COUNT):
        file = SHARDS / f"{number:04}.pt"
        if not file.exists():
            torch.save(digits(EACH, seed=number), file.with_suffix(".new"))
            file.with_suffix(".new").rename(file)


def stage():
    """Copy this rank's shards to the node, and return the copies; each rank has the same number."""
    files = sorted(SHARDS.glob("*.pt"))
    each = len(files) // here.size
    if not each:
        raise SystemExit(f"{len(files)} shards are too few for {here.size} ranks. Make more, smaller ones.")
    scratch = Path(here.scratch()) / f"shards-of-rank-{here.rank}"
    scratch.mkdir(exist_ok=True)
    return [Path(shutil.copy(file, scratch)) for file in files[here.rank : each * here.size : here.size]]


def batches(files, epoch):
    """Yield the batches of an epoch, with shards and their pictures in a new order each time."""
    order = torch.Generator().manual_seed(1000 * epoch + here.rank)
    for index in torch.randperm(len(files), generator=order).tolist():
        images, labels = torch.load(files[index], weights_only=True, mmap=True)
        for chosen in torch.randperm(len(labels), generator=order).split(BATCH):
            yield images[chosen], labels[chosen]


def train():
    """Train, and return the mean loss of each epoch."""
    device = join()
    if here.rank == 0:
        make_shards()
    dist.barrier()
    files = stage()
    model, optimizer = build(device)
    history, done, total = [], 0, EPOCHS * len(files) * -(-EACH // BATCH)
    for epoch in range(EPOCHS):
        losses = []
        for images, labels in batches(files, epoch):
            losses.append(step(model, optimizer, images.to(device), labels.to(device)))
            done += 1
            here.step(done, total, samples=len(images), loss=losses[-1].item())
        loss = torch.stack(losses).mean()
        dist.all_reduce(loss)
        history.append(loss.item() / here.size)
        if here.rank == 0:
            print(
                f"epoch {epoch + 1}: loss {history[-1]:.3f}, {len(files)} shards on each of {here.size} ranks",
                flush=True,
            )
    dist.destroy_process_group()
    return history


if __name__ == "__main__":
    history = train()
