"""A forged Slurm, and a client that speaks with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from forged_pyslurm import ForgedPyslurm
from forged_slurm import ForgedSlurm

from carme_hub.slurm.cli.client import SlurmCli
from carme_hub.slurm.command import Commands
from carme_hub.slurm.submit.submitters import DirectSubmitter


@pytest.fixture
def forged(tmp_path: Path) -> ForgedSlurm:
    return ForgedSlurm(tmp_path)


@pytest.fixture
def commands(forged: ForgedSlurm) -> Commands:
    return Commands(prefix=str(forged.prefix), timeout=60.0, max_bytes=10_000_000)


@pytest.fixture
def client(commands: Commands) -> SlurmCli:
    return SlurmCli(cluster="lab", commands=commands, submitter=DirectSubmitter(commands))


@pytest.fixture
def library(tmp_path: Path, forged: ForgedSlurm, monkeypatch: pytest.MonkeyPatch) -> ForgedPyslurm:
    """A pyslurm that may be imported, beside commands of the same release."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    forged.release("25.11.7")
    return ForgedPyslurm(folder)
