"""Elastic, with torchrun: ranks come and go while it trains

Add GPUs while this trains (`distributed.resize(+2)`, or the button), give some back, or lose a node: torch's elastic
agent restarts the processes, and they continue from the last checkpoint. Each step uses the same number of pictures,
however many ranks share them. So the loss curve does not depend on the number of ranks, the learning rate needs no
change, and an epoch uses each picture once.
"""

# %%distributed --elastic 1:32

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from carme_hub.training import here
from carme_hub.training.digits import digits

EPOCHS = 5
BATCH = 128  # pictures per step, of all ranks together
RATE = 0.1
EVERY = 4  # steps between two checkpoints: the most that are repeated
FILE = Path(os.environ.get("CARME_RUN_FOLDER", ".")) / "elastic-torch.pt"  # a new run starts from the beginning


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


def step(model, optimizer, images, labels, count=None):
    """Train on this rank's part of ``count`` pictures, and return its part of the loss."""
    count = count or len(labels) * dist.get_world_size()
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels, reduction="sum") / count
    (loss * dist.get_world_size()).backward()  # gradients are averaged, and parts may differ in size
    optimizer.step()
    return loss.detach()


def save(model, optimizer, place):
    """Write a checkpoint completely or not at all; rank 0 does, since all ranks have the same state."""
    if dist.get_rank() == 0:
        kept = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "place": place}
        torch.save(kept, FILE.with_suffix(".new"))
        FILE.with_suffix(".new").replace(FILE)


def load(model, optimizer, device):
    """Return the position of this run's last checkpoint, or the beginning."""
    if not FILE.exists() or "CARME_RUN" not in os.environ:
        return {"epoch": 0, "seen": 0, "number": 0, "sum": 0.0, "history": []}
    kept = torch.load(FILE, map_location=device, weights_only=True)
    model.module.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    return kept["place"]


def train():
    """Train, and return the mean loss of each epoch."""
    device = join()
    rank, size = dist.get_rank(), dist.get_world_size()
    images, labels = digits(2048)
    model, optimizer = build(device)
    place = load(model, optimizer, device)
    dist.barrier()  # no rank writes a checkpoint before all have read this one
    while place["epoch"] < EPOCHS:
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(place["epoch"]))
        while place["seen"] < len(order):
            batch = order[place["seen"] : place["seen"] + BATCH]
            mine = batch[rank::size]
            loss = step(model, optimizer, images[mine].to(device), labels[mine].to(device), len(batch))
            dist.all_reduce(loss)
            place["seen"], place["number"] = place["seen"] + len(batch), place["number"] + 1
            place["sum"] += loss.item() * len(batch)
            here.step(place["number"], EPOCHS * -(-len(order) // BATCH), samples=len(mine), loss=loss.item())
            if place["number"] % EVERY == 0 and place["seen"] < len(order):
                save(model, optimizer, place)
        history = [*place["history"], place["sum"] / place["seen"]]
        place = {**place, "epoch": place["epoch"] + 1, "seen": 0, "sum": 0.0, "history": history}
        if rank == 0:
            print(f"epoch {place['epoch']}: loss {history[-1]:.3f} on {size} ranks", flush=True)
        save(model, optimizer, place)
    dist.destroy_process_group()
    return place["history"]


if __name__ == "__main__":
    history = train()
