"""``carme-hub folders``: a folder from the invitation to its end on the command line, at the real service."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from forged_folders_service import PREFIX, Site, running
from rig.forged_http import run

from carme_hub.cli.folders import command as c


class Terminal:
    """Runs commands as somebody."""

    def __init__(self, site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.site, self._monkeypatch, self._capsys = site, monkeypatch, capsys
        monkeypatch.setenv("JUPYTERHUB_API_URL", site.url.removesuffix(PREFIX) + "/hub/api")

    async def run(self, who: str, app: type[Any], *argv: str) -> tuple[int, str, str]:
        """Run a command; return its exit status and what it says on both."""
        self._monkeypatch.setenv("JUPYTERHUB_API_TOKEN", who)
        self._capsys.readouterr()
        status = await asyncio.to_thread(run, app, *argv)
        said = self._capsys.readouterr()
        return status, said.out, said.err

    async def says(self, who: str, app: type[Any], *argv: str) -> str:
        """Run a command that succeeds; return what it says."""
        status, out, err = await self.run(who, app, *argv)
        assert status == 0, err
        return out


@pytest.fixture
async def terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[Terminal]:
    async with running(tmp_path, monkeypatch) as site:
        yield Terminal(site, monkeypatch, capsys)


async def test_a_folder_from_the_invitation_to_its_end(terminal: Terminal) -> None:
    says = terminal.says
    assert "No folder is yours or shared." in await says("ann", c.ListApp)
    assert "genomes is made: /shared/genomes in sessions" in await says("ann", c.CreateApp, "genomes")
    day = f"{time.gmtime().tm_year + 1}-01-31"
    assert "ben is invited" in await says("ann", c.InviteApp, "genomes", "ben", "--write", "--until", day)
    assert "invited" in await says("ben", c.ListApp)
    assert "/shared/genomes in sessions that choose it" in await says("ben", c.AcceptApp, "genomes")
    shown = await says("ann", c.ShowApp, "genomes")
    assert "reads and writes" in shown
    assert day in shown
    assert "3 files and 0 folders; members cannot use 1 of them." in await says("ben", c.ScanApp, "genomes")
    assert "No session has genomes." in await says("ann", c.SessionsApp, "genomes")
    assert "is offered to ben" in await says("ann", c.HandoverApp, "genomes", "ben")
    assert "genomes is yours now." in await says("ben", c.AcceptApp, "genomes")
    assert "not on your list any more" in await says("ann", c.LeaveApp, "genomes")
    await says("ben", c.InviteApp, "genomes", "lab", "--kind", "group")
    await says("cleo", c.AcceptApp, "genomes")
    assert "The access of lab to genomes has ended." in await says(
        "ben", c.RevokeApp, "genomes", "lab", "--kind", "group"
    )
    assert "genomes is deleted." in await says("ben", c.DeleteApp, "genomes", "--confirm", "genomes")


async def test_a_dataset_is_published_found_and_kept(terminal: Terminal) -> None:
    says = terminal.says
    await says("ann", c.CreateApp, "genomes", "--description", "Beetles")
    shown = await says("ann", c.DescribeApp, "genomes", "--licence", "CC0", "--dataset", "yes", "--published", "yes")
    assert "CC0" in shown
    assert "genomes" in await says("cleo", c.DatasetsApp, "beetles", "cc0")
    assert "No dataset has these words." in await says("cleo", c.DatasetsApp, "whales")
    assert "genomes is on your list." in await says("cleo", c.KeepApp, "genomes")
    found = json.loads(await says("cleo", c.ListApp, "--json"))
    assert [one["published"] for one in found["folders"]] == [True]


async def test_refusals_are_the_services_words_and_usage_is_told(terminal: Terminal) -> None:
    run = terminal.run
    assert (await run("ann", c.CreateApp))[0] != 0
    status, _, err = await run("ann", c.CreateApp, "A")
    assert (status, "A folder's name has 2 to 63" in err) == (1, True)
    status, _, err = await run("ann", c.ShowApp, "genomes")
    assert (status, "There is no such folder of yours" in err) == (1, True)
    await terminal.says("ann", c.CreateApp, "genomes")
    for argv in (("genomes",), ("genomes", "--confirm", "other")):
        assert (await run("ann", c.DeleteApp, *argv))[0] != 0
    for app, *words in (
        (c.RevokeApp, "genomes", "nobody"),
        (c.InviteApp, "genomes", "ben", "--until", "soon"),
        (c.DescribeApp, "genomes", "--dataset", "maybe"),
    ):
        status, _, err = await run("ann", app, *words)
        assert (status, bool(err)) == (2, True)
    assert (await run("wrong", c.ListApp))[0] != 0


async def test_what_is_not_applied_yet_is_told_beside_the_answer(terminal: Terminal) -> None:
    terminal.site.disk.refuses = "the disk is full"
    status, _, err = await terminal.run("ann", c.CreateApp, "genomes")
    assert status == 0
    assert "Not applied yet, and tried again: the disk is full." in err
