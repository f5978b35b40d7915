"""Elastic, with Horovod: ranks come and go while it trains

Add GPUs while this trains (`distributed.resize(+2)`, or the button), give some back, lose a node: it goes on from the
last commit. Each step learns from the same number of pictures however many ranks share them, so the curve of the loss
does not know how many there were, the learning rate needs no change, and each picture is seen once in an epoch.

Horovod's own `ElasticSampler` is not used: it pads an epoch with pictures that were seen, and may keep the old number
of ranks when some leave. Instead `state.seen` says how far the epoch is, and is committed with the model.
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
BATCH = 128  # pictures of a step, of all ranks together
RATE = 0.1
EVERY = 4  # steps from one commit to the next: at most so many are done again, and so long do new ranks wait
FILE = Path(os.environ.get("CARME_RUN_FOLDER", ".")) / "elastic-horovod.pt"  # for the case that all ranks are lost


def join():
    """Join the other ranks, and return this rank's device."""
    hvd.init()
    return torch.device(here.device())


def build(device):
    """Return the model and its optimizer. What rank 0 has comes with the state, at the beginning and later."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    return model, hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


def step(model, optimizer, images, labels, count=None):
    """Learn from this rank's part of ``count`` pictures, and return the part of the loss."""
    count = count or len(labels) * hvd.size()
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels, reduction="sum") / count
    (loss * hvd.size()).backward()  # gradients are averaged: parts need not have the same size
    optimizer.step()
    return loss.detach()


def save(state):
    """Write a checkpoint that is whole or not there; by rank 0, for all have the same."""
    if hvd.rank() == 0:
        place = {name: getattr(state, name) for name in ("epoch", "seen", "number", "sum", "history")}
        kept = {"model": state.model.state_dict(), "optimizer": state.optimizer.state_dict(), "place": place}
        torch.save(kept, FILE.with_suffix(".new"))
        FILE.with_suffix(".new").replace(FILE)


def load(model, optimizer, device):
    """Return how far the last checkpoint of this run is, or the beginning."""
    if not FILE.exists() or "CARME_RUN" not in os.environ:
        return {"epoch": 0, "seen": 0, "number": 0, "sum": 0.0, "history": []}
    kept = torch.load(FILE, map_location=device, weights_only=True)
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    return kept["place"]


@hvd.elastic.run
def learn(state, images, labels, device):
    """Train from where the state is; called anew in every rank whenever ranks have come or gone."""
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
