"""DeepSpeed's engine with ZeRO's first stage, as in its tutorial "Getting started"."""

import argparse

import deepspeed
import torch

CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "SGD", "params": {"lr": 0.01}},
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
}

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
parser = deepspeed.add_config_arguments(parser)
arguments = parser.parse_args()

deepspeed.init_distributed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
engine, _, loader, _ = deepspeed.initialize(
    args=arguments,
    model=model,
    model_parameters=model.parameters(),
    training_data=torch.utils.data.TensorDataset(torch.randn(64, 8, generator=torch.Generator().manual_seed(0))),
    config=CONFIG,
)
for (batch,) in loader:
    loss = engine(batch.to(engine.device)).square().mean()
    engine.backward(loss)
    engine.step()
weights = torch.cat([each.detach().flatten() for each in engine.module.parameters()])
all_weights = [torch.empty_like(weights) for _ in range(engine.world_size)]
torch.distributed.all_gather(all_weights, weights)
same = all(torch.equal(each, weights) for each in all_weights)
if torch.distributed.get_rank() == 0:
    print("world", engine.world_size, "steps", engine.global_steps, "same weights" if same else "other weights")
