"""A site with a user who leaves: the command, a forged hub and Slurm, a real database, and a home folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forged_people import People, SlurmThatCanFallSilent, people
from rig.command_line import CommandLine

from carme_hub.cli.users import folders
from carme_hub.cli.users.offboard import OffboardApp
from carme_hub.slurm.settings import CarmeSlurm


class Leaving:
    """The command, and what is there."""

    def __init__(self, line: CommandLine, hub: People, home: Path) -> None:
        self.line, self.hub, self.home = line, hub, home

    @property
    def slurm(self) -> SlurmThatCanFallSilent:
        return self.hub.slurm

    def run(self, *argv: str) -> tuple[int, str, str]:
        """Offboard alice."""
        quick = ("--every", "0.01", *(() if "--wait" in argv else ("--wait", "0.3")))
        reason = () if "--dry-run" in argv else ("--reason", "Left in May")
        return self.line.run(OffboardApp, "alice", "--hub", self.hub.address, *quick, *reason, *argv)

    def parts(self, *argv: str) -> dict[str, dict[str, Any]]:
        """Offboard alice, and return what became of each part."""
        found = json.loads(self.run(*argv, "--json")[1])
        return {one["part"]: one for one in found["parts"]}


@pytest.fixture
def leaving(line: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Leaving]:
    home = tmp_path / "homes" / "alice"
    home.mkdir(parents=True)
    status = home.stat()

    class Entry:
        pw_dir, pw_uid = str(home), status.st_uid

    def getpwnam(name: str) -> Any:
        if name != "alice":
            raise KeyError(name)
        return Entry

    monkeypatch.setattr("carme_hub.cli.users.folders.pwd.getpwnam", getpwnam)
    monkeypatch.setattr(folders, "_owner", lambda _user, uid: "" if uid == status.st_uid else "somebody")
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "token")
    with line.file.open("a") as file:
        file.write("c.CarmeReservations.enabled = True\n")
    with people() as hub:
        monkeypatch.setattr(CarmeSlurm, "client", lambda _self: hub.slurm)
        yield Leaving(line, hub, home)
