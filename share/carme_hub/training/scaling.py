"""Scaling curve: how many GPUs to ask for

`distributed.benchmark` runs `train` several times with each number of ranks and each batch size. It reports how many
ranks are worth it, what likely limits the training, and what an epoch costs. `train` does one step for each step of its
trial. Some steps are *alone*: `step.quiet` keeps the model from exchanging gradients, so that the time for
communication is measured within the same run. The trained model is discarded.

Replace `build` and the data by your own, and set the numbers of ranks and the batch sizes.
"""

import itertools
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from carme_hub.training import distributed, here
from carme_hub.training.digits import digits

RANKS = [1, 2, 4]
BATCH = [32, 64, 96]  # pictures per rank and step
MODE = "weak"  # "strong": all ranks together share BATCH


def join():
    """Join the other ranks, once for all batch sizes; return this rank's device."""
    if not dist.is_initialized():
        alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
        dist.init_process_group(**alone)
    return torch.device(here.device())


def build(device):
    """Return the model and its optimizer."""
    model = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(32 * 64, 128), nn.ReLU(), nn.Linear(128, 10)),
    ).to(device)
    model = DistributedDataParallel(model)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(trial):
    """Do the steps of one trial, with `trial.batch` pictures each."""
    device = join()
    torch.set_num_threads(1)  # ranks on one node would compete for its CPUs
    data = TensorDataset(*digits(1024, seed=trial.rank))
    trial.epoch = 60_000  # pictures of an epoch, for its cost
    loader = DataLoader(data, trial.batch, shuffle=True, drop_last=True)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    model, optimizer = build(device)
    for step in trial:
        with step.loading():
            images, labels = (each.to(device) for each in next(batches))
        optimizer.zero_grad()
        with step.quiet(model):
            nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


if __name__ == "__main__":
    report = distributed.benchmark(train, RANKS, BATCH, MODE)
    print(report.advice)
