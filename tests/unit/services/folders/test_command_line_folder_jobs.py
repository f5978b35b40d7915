"""``carme-hub folders disk`` and ``verify``: they submit, wait, and say by text and exit status what is found."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from forged_folder_jobs import SlurmThatRunsWhenTold
from forged_folders_service import Site, running
from test_command_line_folders import Terminal
from test_folder_jobs import dataset

from carme_hub.cli.folders import looks
from carme_hub.folders import jobs as folder_jobs


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.setattr(folder_jobs.pwd, "getpwnam", lambda name: SimpleNamespace(pw_dir=f"/home/{name}"))
    monkeypatch.setattr(looks, "_PAUSE", 0.05)
    async with running(tmp_path, monkeypatch) as found:
        await found.done("ann", "POST", "folders", {"name": "genomes"})
        yield found


@pytest.fixture
def slurm(site: Site) -> SlurmThatRunsWhenTold:
    found = SlurmThatRunsWhenTold()
    site.service.jobs._client = found  # type: ignore[assignment]
    site.service.jobs._address = site.url
    return found


@pytest.fixture
def terminal(site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(site, monkeypatch, capsys)


async def waited(terminal: Terminal, slurm: SlurmThatRunsWhenTold, data: Path, app: Any, *argv: str) -> Any:
    """Run a command that waits for a job, and the job."""
    before = len(slurm.specs)
    command = asyncio.create_task(terminal.run("ann", app, *argv))
    while len(slurm.specs) == before:
        await asyncio.sleep(0.02)
    assert await slurm.run(data) == 0
    return await command


async def test_a_comparison_is_waited_for_and_says_what_differs(
    site: Site, terminal: Terminal, slurm: SlurmThatRunsWhenTold, tmp_path: Path
) -> None:
    status, out, _ = await terminal.run("ann", looks.VerifyApp, "genomes", "--last")
    assert (status, "was not compared with its checksums yet" in out) == (1, True)
    status, _, err = await terminal.run("ann", looks.VerifyApp, "genomes")
    assert (status, "Name the file of checksums" in err) == (1, True)
    await site.done("ann", "PATCH", "folders/genomes", {"checksums": "SHA256SUMS"})
    data = dataset(tmp_path)
    status, out, err = await waited(terminal, slurm, data, looks.VerifyApp, "genomes", "--wait")
    assert (status, "The job waits in Slurm's queue as job 41." in err) == (1, True)
    assert "of 8 files 1 differs, 2 are missing" in out
    assert "  differs: changed\n" in out
    status, out, _ = await terminal.run("ben", looks.VerifyApp, "genomes", "--last")
    assert status == 1
    for name in ("unlisted", "link"):
        (data / name).unlink()
    good = (data / "SHA256SUMS").read_text().splitlines()[:2]
    (data / "SHA256SUMS").write_text("\n".join(good) + "\n")
    for name in ("changed", "new\nline"):
        (data / name).unlink()
    status, out, _ = await waited(terminal, slurm, data, looks.VerifyApp, "genomes", "--wait")
    assert (status, "all 2 files are as listed" in out) == (0, True)


async def test_a_measurement_is_submitted_and_shown(
    terminal: Terminal, slurm: SlurmThatRunsWhenTold, tmp_path: Path
) -> None:
    status, out, _ = await terminal.run("ann", looks.DiskApp, "genomes")
    assert (status, "Nobody has measured it: carme-hub folders disk genomes --measure" in out) == (0, True)
    data = dataset(tmp_path)
    status, out, _ = await waited(terminal, slurm, data, looks.DiskApp, "genomes", "--measure", "--wait")
    assert (status, "/shared/genomes" in out, "inner" in out) == (0, True, True)
    status, out, err = await terminal.run("ann", looks.DiskApp, "genomes", "--measure", "--json")
    assert (status, "waits in Slurm's queue as job 42" in err) == (0, True)
    assert json.loads(out)["job"]["state"] == "waiting"


async def test_a_job_that_fails_is_an_exit_status(
    terminal: Terminal, slurm: SlurmThatRunsWhenTold, tmp_path: Path
) -> None:
    status, _, err = await waited(terminal, slurm, tmp_path / "gone", looks.DiskApp, "genomes", "--measure", "--wait")
    assert status == 1
    assert "The job failed: " in err
    assert "No such file or directory" in err
