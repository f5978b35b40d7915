"""Horovod with PyTorch: averaged gradients by a wrapped optimizer

Horovod needs four changes in a script for one GPU: `init`, the broadcast of rank 0's initial values, the wrapped
optimizer, and a part of the data for each rank. Give every operation of your own a `name`: operations without a name
are matched by counting them, so a rank with one operation more than the others makes all ranks wait forever.

Not for `model.bfloat16()`: Horovod 0.28.1 cannot send bfloat16 (autocast is fine).
"""

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from carme_hub.training import here
from carme_hub.training.digits import digits

EPOCHS = 5
BATCH = 32  # pictures per rank and step
RATE = 0.1


def join():
    """Join the other ranks, and return this rank's device."""
    hvd.init()
    return torch.device(here.device())


def build(device):
    """Return the model and its optimizer. All ranks start with the values of rank 0."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # the operations are named after the parameters
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return model, hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


def step(model, optimizer, images, labels):
    """Train on one batch, and return its loss."""
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()  # waits for the averages
    return loss.detach()


def train():
    """Train, and return the mean loss of each epoch."""
    device = join()
    data = TensorDataset(*digits(2048))
    sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())  # each rank has its own part
    batches = DataLoader(data, BATCH, sampler=sampler)
    model, optimizer = build(device)
    history, total = [], EPOCHS * len(batches)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)  # a new order for each epoch
        losses = []
        for number, (images, labels) in enumerate(batches, 1 + epoch * len(batches)):
            losses.append(step(model, optimizer, images.to(device), labels.to(device)))
            here.step(number, total, samples=len(images), loss=losses[-1].item())
        history.append(hvd.allreduce(torch.stack(losses).mean(), name="loss of the epoch").item())
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {history[-1]:.3f} on {hvd.size()} ranks", flush=True)
    hvd.shutdown()
    return history


if __name__ == "__main__":
    history = train()
