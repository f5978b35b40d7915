"""A sweep of hyper-parameters with early stopping, shared by the ranks

Optuna chooses the hyper-parameters of each trial by the results of those before, and ends trials that fall behind. The
ranks do not communicate: each takes one trial after the other of the same study, so that one cell uses all GPUs of the
session, or of a companion. The page *Optuna* of JupyterLab's launcher shows the study while it grows.

Run it again and it goes on where it ended, with any number of ranks; with a larger `TRIALS` it tries more. With
`sbatch --array=0-5` the tasks of the array share the study too, without any change.
"""

import os

import optuna
import torch
from torch import nn

from carme_hub.training import here, sweeps
from carme_hub.training.digits import digits

STUDY = os.environ.get("STUDY", "digits")
TRIALS = 16  # of the study, over all ranks, runs and jobs
EPOCHS = 5
BATCH = 32


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


def attempt(trial, device, images, labels):
    """Return the loss of the last epoch, unless the trial falls behind."""
    rate = trial.suggest_float("rate", 1e-3, 0.5, log=True)
    width = trial.suggest_int("width", 16, 256, log=True)
    model, optimizer = build(device, rate, width)
    for epoch in range(1, EPOCHS + 1):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        found = [step(model, optimizer, images[chosen], labels[chosen]) for chosen in order.split(BATCH)]
        loss = torch.stack(found).mean().item()
        trial.report(loss, epoch)
        if trial.should_prune():
            raise optuna.TrialPruned
    return loss


def train():
    """Try until the study has enough trials, and return the losses of the best one."""
    device = torch.device(here.device())
    images, labels = (each.to(device) for each in digits(1024))
    study = sweeps.open_study(STUDY)
    sweeps.optimize(study, lambda trial: attempt(trial, device, images, labels), TRIALS)
    try:
        best = study.best_trial
    except ValueError:  # there are more ranks than trials, and none has ended
        return []
    if here.rank == 0:
        print(f"the best of {len(study.trials)} trials: {best.params}: loss {best.value:.3f}", flush=True)
    return [loss for _, loss in sorted(best.intermediate_values.items())]


if __name__ == "__main__":
    history = train()
