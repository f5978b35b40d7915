"""Lightning's model for bug reports with its MLFlowLogger, as in Lightning's manual, and MLflow's own functions."""

import sys

import mlflow
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset
from lightning.pytorch.loggers import MLFlowLogger
from torch.utils.data import DataLoader


class Model(BoringModel):
    """Logs its loss."""

    def training_step(self, batch, batch_idx):
        """Log the loss of each step."""
        loss = super().training_step(batch, batch_idx)["loss"]
        self.log("train_loss", loss)
        return loss


nodes, devices = int(sys.argv[1]), int(sys.argv[2])
logger = MLFlowLogger(experiment_name="lightning")
trainer = Trainer(
    accelerator="cpu",
    strategy="ddp",
    devices=devices,
    num_nodes=nodes,
    max_epochs=1,
    logger=logger,
    log_every_n_steps=4,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Model(), DataLoader(RandomDataset(32, 64), batch_size=2))
if trainer.is_global_zero:
    mlflow.set_experiment("plain")
    with mlflow.start_run(run_name="by hand"):
        mlflow.log_params({"lr": 0.1, "ranks": trainer.world_size})
        for step in range(5):
            mlflow.log_metric("loss", 1 / (step + 1), step=step)
    print("logged")
