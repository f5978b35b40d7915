"""Scaling curve: for how many GPUs to ask

`distributed.benchmark` runs `train` with each number of ranks and each batch size, several times, and says up to how
many ranks it is worth to go, what likely limits it, and what an epoch costs. `train` does one step for each that its
trial gives. Some of these are *alone*: `step.quiet` keeps the model from exchanging gradients, so that what
communication takes is measured within the same run. What is learnt here is thrown away.

Change `build` and the data for your own, and the numbers of ranks and batch sizes.
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
BATCH = [32, 64, 96]  # pictures of each rank in a step
MODE = "weak"  # "strong": BATCH is that of all ranks together


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
    torch.set_num_threads(1)  # ranks on the CPUs of one node would fight for them
    data = TensorDataset(*digits(1024, seed=trial.rank))
    trial.epoch = 60_000  # pictures in an epoch, for what it costs
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
