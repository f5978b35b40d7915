"""Training on CPUs by gloo, with the averaging written out

This does what DDP does, in five lines: it concatenates all gradients, adds them up over the ranks by gloo, divides the
sum, and copies it back. Use it for small models, on nodes without GPUs, and to see how the other templates work.
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from carme_hub.training import here
from carme_hub.training.digits import digits

EPOCHS = 5
BATCH = 32  # pictures per rank and step
RATE = 0.1


def join():
    """Join the other ranks, or form a group of one; this template uses no GPU."""
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("gloo", **alone)
    neighbours = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    # Without a limit each rank would use all CPUs of the node.
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // neighbours))
    return torch.device("cpu")


def build(device):
    """Return the model and its optimizer. All ranks start with the parameters of rank 0."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    return model, torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)


def average(parameters):
    """Give every rank the mean of all ranks' gradients."""
    gradients = [parameter.grad for parameter in parameters]
    together = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(together)  # one message instead of one for each gradient
    parts = (together / dist.get_world_size()).split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def step(model, optimizer, images, labels):
    """Train on one batch, and return its loss."""
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    average(list(model.parameters()))
    optimizer.step()
    return loss.detach()


def mean(value):
    """Return the mean over all ranks."""
    dist.all_reduce(value)
    return value.item() / dist.get_world_size()


def train():
    """Train, and return the mean loss of each epoch."""
    device = join()
    data = TensorDataset(*digits(2048))
    sampler = DistributedSampler(data)  # each rank has its own part
    batches = DataLoader(data, BATCH, sampler=sampler)
    model, optimizer = build(device)
    history, total = [], EPOCHS * len(batches)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)  # a new order for each epoch
        losses = []
        for number, (images, labels) in enumerate(batches, 1 + epoch * len(batches)):
            losses.append(step(model, optimizer, images.to(device), labels.to(device)))
            here.step(number, total, samples=len(images), loss=losses[-1].item())
        history.append(mean(torch.stack(losses).mean()))
        if here.rank == 0:
            print(f"epoch {epoch + 1}: loss {history[-1]:.3f} on {here.size} ranks", flush=True)
    dist.destroy_process_group()
    return history


if __name__ == "__main__":
    history = train()
