"""Gradient clipping: no step is longer than you allow

A few odd pictures can make a gradient so long that one step undoes many. `clip_grad_norm_` shortens it to `LONGEST`.
With DDP the gradients have been averaged by then, so that all ranks clip alike.
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from carme_hub.training import here
from carme_hub.training.digits import digits

EPOCHS, BATCH, RATE, LONGEST = 5, 64, 0.1, 1.0


def train():
    """Train, and return this rank's mean loss of each epoch."""
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group(**alone)
    device = torch.device(here.device())
    images, labels = (each[here.rank :: here.size].to(device) for each in digits(2048))
    model = DistributedDataParallel(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).to(device))
    optimizer, history = torch.optim.SGD(model.parameters(), lr=RATE), []
    for _ in range(EPOCHS):
        losses = []
        for some in torch.randperm(len(images)).split(BATCH):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[some]), labels[some])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), LONGEST)
            optimizer.step()
            losses.append(loss.item())
        history.append(sum(losses) / len(losses))
    dist.destroy_process_group()
    return history


if __name__ == "__main__":
    history = train()
