"""What setup asks of systemd, the folder that it makes for the hub, and the hub's variables for the doctor."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from pathlib import Path

import pytest

from carme_hub.cli.setup.services import Units, make_state_folder
from carme_hub.cli.setup.trial import variables
from carme_hub.errors import CarmeError
from carme_hub.slurm.command import Commands

Forge = Callable[[str], Units]


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Forge:
    """Return a function that forges systemctl by what it does, and returns the units of a site."""

    def forge(does: str) -> Units:
        program = tmp_path / "systemctl"
        program.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/asked\n{does}\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        return Units(Commands(), ("hub.service", "proxy.service"))

    return forge


@pytest.mark.parametrize(
    ("states", "runs"),
    [
        ("active active", True),
        ("activating active", True),
        ("inactive active", False),
        ("failed inactive", False),
        ("", False),
    ],
)
async def test_a_hub_runs_where_both_units_do(systemctl: Forge, states: str, runs: bool) -> None:
    assert await systemctl(f"printf '%s\\n' {states}; exit 3").run() is runs


async def test_a_restart_leaves_the_proxy_running_and_both_start_with_the_machine(
    systemctl: Forge, tmp_path: Path
) -> None:
    await systemctl("true").restart_hub()
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked == ["daemon-reload", "enable --now proxy.service", "enable hub.service", "restart hub.service"]


async def test_what_systemd_refuses_is_said_with_where_to_look(systemctl: Forge) -> None:
    with pytest.raises(CarmeError, match=r"unit is masked\. See: journalctl -u hub\.service -u proxy\.service"):
        await systemctl("echo 'unit is masked' >&2; exit 1").start()


def test_the_state_folder_is_made_private_where_systemd_does_not_make_it(tmp_path: Path) -> None:
    folder = tmp_path / "srv/hub"
    make_state_folder(str(folder), getpass.getuser())
    assert (folder.stat().st_mode & 0o777, folder.owner()) == (0o700, getpass.getuser())
    assert folder.parent.stat().st_mode & 0o777 == 0o755, "others may enter what is above it"
    folder.chmod(0o750)
    make_state_folder(str(folder), getpass.getuser())
    assert folder.stat().st_mode & 0o777 == 0o750, "what is there stays"
    make_state_folder("/var/lib/a-hub-of-nobody", getpass.getuser())
    assert not Path("/var/lib/a-hub-of-nobody").exists(), "systemd makes it (StateDirectory=)"


def test_the_doctor_gets_the_variables_that_systemd_gives_the_hub(tmp_path: Path) -> None:
    file = tmp_path / "secrets"
    file.write_text("# of the hub\n\nOAUTH_CLIENT_SECRET=a=b c\nDATABASE='x y'\n;OFF=1\nEMPTY=\n")
    assert variables(file) == {"OAUTH_CLIENT_SECRET": "a=b c", "DATABASE": "x y", "EMPTY": ""}
    assert variables(tmp_path / "none") == {}
