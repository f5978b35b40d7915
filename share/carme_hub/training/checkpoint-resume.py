"""Checkpoint and resume at the time limit

Two minutes before the end of the job (or when Slurm sends SIGUSR1) all ranks agree on a step, rank 0 writes a
checkpoint, and the run ends. Run the same code again to continue: in this session after you extend it, in another one,
or in a batch job, which Slurm requeues (`--dry-run --requeue` prints its script). It also continues in the middle of an
epoch, and with another number of ranks: no picture is used twice, and only the few are left out that cannot be divided
evenly among the ranks.
"""

import os
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
FILE = Path(os.environ.get("CHECKPOINT", "checkpoint.pt"))
EVERY = 16  # steps between two checkpoints: the most that is lost when a node fails
BEFORE = 120.0  # seconds before the end, enough to write a checkpoint
stopping = []


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


def save(model, optimizer, place):
    """Write a checkpoint completely or not at all; rank 0 does, since all ranks have the same state."""
    if here.rank == 0:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "place": place}
        torch.save(state, FILE.with_suffix(".new"))
        FILE.with_suffix(".new").replace(FILE)


def load(model, optimizer, device):
    """Return the position of the checkpoint, or the beginning."""
    if not FILE.exists():
        return {"epoch": 0, "seen": 0, "history": [], "sum": 0.0}
    state = torch.load(FILE, map_location=device, weights_only=True)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["place"]


def agreed(value, device):
    """Return the sum over all ranks."""
    value = torch.as_tensor(value, device=device, dtype=torch.float64)
    dist.all_reduce(value)
    return value.item()


def train():
    """Train, and return the mean loss of each epoch."""
    device = join()
    here.on_time_limit(lambda: stopping.append(True), before=BEFORE)
    images, labels = digits(2048)
    model, optimizer = build(device)
    place, number = load(model, optimizer, device), 0
    if here.rank == 0 and (place["epoch"] or place["seen"]):
        print(f"continues in epoch {place['epoch'] + 1} after {place['seen']} pictures", flush=True)
    while place["epoch"] < EPOCHS:
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(place["epoch"]))
        for batch in order[place["seen"] :].split(BATCH * here.size):
            mine = batch[: len(batch) // here.size * here.size][here.rank :: here.size]
            if not len(mine):
                break
            loss = step(model, optimizer, images[mine].to(device), labels[mine].to(device))
            place["sum"] += agreed(loss.double() * len(mine), device)
            place["seen"], number = place["seen"] + len(mine) * here.size, number + 1
            here.step(place["epoch"] * len(order) + place["seen"], EPOCHS * len(order), len(mine), loss=loss.item())
            leave = number % 4 == 0 and agreed(len(stopping), device) > 0  # checked by all ranks in the same step
            if leave or number % EVERY == 0:
                save(model, optimizer, place)
            if leave:
                print(f"rank {here.rank}: stopped in time. Run it again to continue.", flush=True)
                return place["history"]
        history = [*place["history"], place["sum"] / place["seen"]]
        place = {"epoch": place["epoch"] + 1, "seen": 0, "sum": 0.0, "history": history}
        if here.rank == 0:
            print(f"epoch {place['epoch']}: loss {history[-1]:.3f} on {here.size} ranks", flush=True)
    save(model, optimizer, place)
    dist.destroy_process_group()
    return place["history"]


if __name__ == "__main__":
    history = train()
