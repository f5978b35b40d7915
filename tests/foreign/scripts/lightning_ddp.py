"""Lightning's own model for bug reports, with DDP and a checkpoint; as in its template for a report."""

import sys

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset
from torch.utils.data import DataLoader


class Model(BoringModel):
    """Says what it is at the end."""

    def on_train_end(self) -> None:
        """Check that all ranks have the same weights."""
        weights = self.all_gather(self.layer.weight.detach())
        assert all(torch.equal(each, weights[0]) for each in weights.reshape(-1, *self.layer.weight.shape))
        if self.trainer.is_global_zero:
            print("world", self.trainer.world_size, type(self.trainer.strategy.cluster_environment).__name__)


nodes, devices = int(sys.argv[1]), int(sys.argv[2])
model: LightningModule = Model()
trainer = Trainer(
    accelerator="cpu",
    strategy="ddp",
    devices=devices,
    num_nodes=nodes,
    max_epochs=2,
    default_root_dir=sys.argv[3],
    enable_model_summary=False,
    logger=False,
)
train = DataLoader(RandomDataset(32, 64), batch_size=2)
trainer.fit(model, train, DataLoader(RandomDataset(32, 64), batch_size=2))
trainer.test(model, DataLoader(RandomDataset(32, 64), batch_size=2))
