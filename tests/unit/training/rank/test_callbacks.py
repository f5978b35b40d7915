"""Loops of Lightning and transformers report their steps by themselves, unless the code does it.

The libraries are forged here in the names that are touched; tests/foreign runs the real ones.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from carme_hub.training.rank.callbacks import lightning, report, transformers
from carme_hub.training.rank.progress import Progress


@pytest.fixture
def progress(monkeypatch: pytest.MonkeyPatch) -> Progress:
    found = Progress()
    monkeypatch.setattr(report, "PROGRESS", found)
    return found


def scalars(progress: Progress) -> list[dict[str, Any]]:
    return [{name: value for name, value in each.items() if name != "at"} for each in progress._waiting]


def test_what_is_no_number_is_left_out(progress: Progress) -> None:
    report.report(
        3,
        float("inf"),
        None,
        {"step": 9.0, "at": 1, "loss": 0.5, "text": "1", "nan": float("nan"), "list": [1], "none": None},
    )
    report.report(4, -1, 8)
    assert progress.snapshot() | {"rate": None} == {"step": 4, "total": None, "samples": 8, "rate": None}
    assert scalars(progress) == [{"step": 3, "loss": 0.5}]


def test_code_that_reports_itself_is_not_talked_over(progress: Progress) -> None:
    report.report(100, 200, 8)
    progress.step(1, 10, 4, {"loss": 1.0})
    report.report(101, 200, 8, {"loss": 2.0})
    assert progress.snapshot() | {"rate": None} == {"step": 1, "total": 10, "samples": 4, "rate": None}
    assert scalars(progress) == [{"step": 1, "loss": 1.0}]


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    return tmp_path


def write(folder: Path, module: str, text: str) -> None:
    path = folder.joinpath(*module.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    for above in path.parents:
        if above == folder:
            break
        (above / "__init__.py").touch()
    path.write_text(text)


def forget(name: str) -> None:
    for each in [each for each in sys.modules if each.partition(".")[0] == name]:
        del sys.modules[each]


CONNECTOR = """
class Callback: ...
def _load_external_callbacks(group): return [group]
"""


def test_a_trainer_of_lightning_reports_its_batches(packages: Path, progress: Progress) -> None:
    write(packages, "pytorch_lightning.trainer.connectors.callback_connector", CONNECTOR)
    lightning.install()
    from pytorch_lightning.trainer.connectors import callback_connector  # type: ignore[import-not-found]

    group, ours = callback_connector._load_external_callbacks("group")
    assert group == "group"
    assert isinstance(ours, callback_connector.Callback)
    trainer = SimpleNamespace(
        log_every_n_steps=2,
        global_step=1,
        estimated_stepping_batches=8,
        logged_metrics={"lr": 0.1},
        train_dataloader=SimpleNamespace(batch_size=16),
    )
    ours.on_train_batch_end(trainer, None, {"loss": 0.5}, None, 0)
    trainer.global_step = 2
    ours.on_train_batch_end(trainer, None, {"loss": 0.25}, None, 1)
    trainer.logged_metrics = {"val_loss": 0.75}
    ours.on_train_epoch_end(trainer, None)
    assert progress.snapshot() | {"rate": None} == {"step": 2, "total": 8, "samples": 32, "rate": None}
    assert scalars(progress) == [{"step": 2, "loss": 0.25, "lr": 0.1}, {"step": 2, "loss": 0.25, "val_loss": 0.75}]
    forget("pytorch_lightning")


def test_a_trainer_of_transformers_reports_its_steps_and_logs(packages: Path, progress: Progress) -> None:
    write(packages, "transformers.trainer", "class TrainerCallback: ...\nDEFAULT_CALLBACKS = []\n")
    transformers.install()
    from transformers.trainer import DEFAULT_CALLBACKS  # type: ignore[import-not-found]

    [kind] = DEFAULT_CALLBACKS
    ours, state = kind(), SimpleNamespace(global_step=5, max_steps=10)
    ours.on_step_end(
        SimpleNamespace(per_device_train_batch_size=4, gradient_accumulation_steps=2), state, None, model=1
    )
    ours.on_log(None, state, None, logs={"loss": 0.5, "total_flos": 3, "note": "x"}, model=1)
    ours.on_log(None, state, None)
    assert progress.snapshot() | {"rate": None} == {"step": 5, "total": 10, "samples": 8, "rate": None}
    assert scalars(progress) == [{"step": 5, "loss": 0.5, "total_flos": 3.0}]
    forget("transformers")


@pytest.mark.parametrize(
    ("install", "module"),
    [
        (lightning.install, "pytorch_lightning.trainer.connectors.callback_connector"),
        (transformers.install, "transformers.trainer"),
    ],
)
def test_another_version_is_left_as_it_is(packages: Path, install: Any, module: str) -> None:
    write(packages, module, "DEFAULT_CALLBACKS = ()\n")
    install()
    __import__(module)
    assert sys.modules[module].DEFAULT_CALLBACKS == ()
    forget(module.partition(".")[0])
