"""Elastic, with Horovod: ranks come and go while it trains

Add GPUs while this trains (`distributed.resize(+2)`, or the button), give some back, or lose a node: the training
continues from the last commit. Each step uses the same number of pictures, however many ranks share them. So the loss
curve does not depend on the number of ranks, the learning rate needs no change, and an epoch uses each picture once.

Horovod's own `ElasticSampler` is not used: it fills an epoch up with used pictures, and may keep the old number of
ranks when some leave. Instead `state.seen` counts the pictures of the epoch, and is committed with the model.
"""

# %%distributed --elastic 1:32

import os
from pathlib import Path

import horovod.torch as hvd
import torch
from torch import nn

from carme_hub.training import here
from carme_hub.training.digits import digits

EPOCHS = 5
BATCH = 128  # pictures per step, of all ranks together
RATE = 0.1
EVERY = 4  # steps between two commits: the most that are repeated, and for which new ranks wait
FILE = Path(os.environ.get("CARME_RUN_FOLDER", ".")) / "elastic-horovod.pt"  # used if all ranks are lost


def join():
    """Join the other ranks, and return this rank's device."""
    hvd.init()
    return torch.device(here.device())


def build(device):
    """Return the model and its optimizer. The elastic state copies the values of rank 0, at the start and later."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    return model, hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


def step(model, optimizer, images, labels, count=None):
    """Train on this rank's part of ``count`` pictures, and return its part of the loss."""
    count = count or len(labels) * hvd.size()
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels, reduction="sum") / count
    (loss * hvd.size()).backward()  # gradients are averaged, and parts may differ in size
    optimizer.step()
    return loss.detach()


def save(state):
    """Write a checkpoint completely or not at all; rank 0 does, since all ranks have the same state."""
    if hvd.rank() == 0:
        place = {name: getattr(state, name) for name in ("epoch", "seen", "number", "sum", "history")}
        kept = {"model": state.model.state_dict(), "optimizer": state.optimizer.state_dict(), "place": place}
        torch.save(kept, FILE.with_suffix(".new"))
        FILE.with_suffix(".new").replace(FILE)


def load(model, optimizer, device):
    """Return the position of this run's last checkpoint, or the beginning."""
    if not FILE.exists() or "CARME_RUN" not in os.environ:
        return {"epoch": 0, "seen": 0, "number": 0, "sum": 0.0, "history": []}
    kept = torch.load(FILE, map_location=device, weights_only=True)
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    return kept["place"]


@hvd.elastic.run
def learn(state, images, labels, device):
    """Train from the position in the state; Horovod calls this again in every rank when ranks have come or gone."""
    while state.epoch < EPOCHS:
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(state.epoch))
        while state.seen < len(order):
            batch = order[state.seen : state.seen + BATCH]
            mine = batch[hvd.rank() :: hvd.size()]
            part = step(state.model, state.optimizer, images[mine].to(device), labels[mine].to(device), len(batch))
            loss = hvd.allreduce(part, op=hvd.Sum, name="loss").item()
            state.sum += loss * len(batch)
            state.seen, state.number = state.seen + len(batch), state.number + 1
            here.step(state.number, EPOCHS * -(-len(order) // BATCH), samples=len(mine), loss=loss)
            if state.number % EVERY == 0 and state.seen < len(order):
                save(state)
                state.commit()
        state.history = [*state.history, state.sum / state.seen]
        state.epoch, state.seen, state.sum = state.epoch + 1, 0, 0.0
        if hvd.rank() == 0:
            print(f"epoch {state.epoch}: loss {state.history[-1]:.3f} on {hvd.size()} ranks", flush=True)
        save(state)
        state.commit()
    return state.history


def train():
    """Train, and return the mean loss of each epoch."""
    device = join()
    model, optimizer = build(device)
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, **load(model, optimizer, device))
    history = learn(state, *digits(2048), device)
    hvd.shutdown()
    return history


if __name__ == "__main__":
    history = train()
