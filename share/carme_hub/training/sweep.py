"""A sweep of hyper-parameters, divided among the ranks

The ranks do not communicate: rank r of N takes every N-th combination, so that one cell uses all GPUs of the session,
or of a companion. Each combination has one JSON file with its result, and is not tried again where the file exists.
With `sbatch --array=0-5` the tasks of the array share the combinations too, without any change.
"""

import itertools
import json
import os
from pathlib import Path

import torch
from torch import nn

from carme_hub.training import here
from carme_hub.training.digits import digits

EPOCHS = 5
BATCH = 32
RATES, WIDTHS = (0.01, 0.05, 0.2), (32, 128)
FOUND = Path(os.environ.get("SWEEP", "sweep"))
TRIES = [{"rate": rate, "width": width} for rate, width in itertools.product(RATES, WIDTHS)]


def part():
    """Return the number of this rank's part and the number of parts, over this run and its job array, if any."""
    if "SLURM_ARRAY_TASK_ID" not in os.environ:
        return here.rank, here.size
    task, first, last, step, tasks = (
        int(os.environ[f"SLURM_ARRAY_TASK_{name}"]) for name in ("ID", "MIN", "MAX", "STEP", "COUNT")
    )
    if (last - first) // step + 1 != tasks:
        raise SystemExit("Number the tasks evenly, such as --array=0-5, so that they can share the combinations.")
    return (task - first) // step * here.size + here.rank, tasks * here.size


def build(device, rate, width):
    """Return a model and its optimizer; the same numbers give the same model on every rank."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10)).to(device)
    return model, torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)


def step(model, optimizer, images, labels):
    """Train on one batch, and return its loss."""
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.detach()


def attempt(device, images, labels, **numbers):
    """Return the loss of each epoch."""
    model, optimizer = build(device, **numbers)
    losses = []
    for epoch in range(EPOCHS):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        found = [step(model, optimizer, images[chosen], labels[chosen]) for chosen in order.split(BATCH)]
        losses.append(torch.stack(found).mean().item())
    return losses


def results():
    """Return the results so far, the best first."""
    found = [json.loads(file.read_text()) for file in FOUND.glob("*.json")]
    return sorted(found, key=lambda each: each["losses"][-1])


def train():
    """Try this rank's combinations, and return the losses of the best one so far."""
    device = torch.device(here.device())
    images, labels = (each.to(device) for each in digits(1024))
    FOUND.mkdir(exist_ok=True)
    number, of = part()
    mine = TRIES[number::of]
    for done, numbers in enumerate(mine, 1):
        file = FOUND / f"{TRIES.index(numbers):04}.json"
        if not file.exists():
            losses = attempt(device, images, labels, **numbers)
            new = file.with_suffix(f".new{number}")
            new.write_text(json.dumps({**numbers, "losses": losses}))
            new.rename(file)
        losses = json.loads(file.read_text())["losses"]
        print(f"{numbers}: loss {losses[-1]:.3f}", flush=True)
        here.step(done, len(mine), samples=EPOCHS * len(labels), loss=losses[-1])
    best = results()[0] if results() else {"losses": []}
    if number == 0:
        print(f"the best of {len(results())} so far: {best}", flush=True)
    return best["losses"]


if __name__ == "__main__":
    history = train()
