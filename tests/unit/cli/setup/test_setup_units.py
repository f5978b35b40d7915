"""What setup asks of systemd, the folder that it makes for the hub, and the hub's variables for the doctor."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web

from carme_hub.cli.setup.services import Units, check_state_folder, make_state_folder, wait_until_ready
from carme_hub.cli.setup.trial import variables
from carme_hub.errors import CarmeError, ConfigError
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


async def test_timers_are_started_and_ended_where_setup_has_written_them(
    systemctl: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carme_hub.cli.setup.services.UNITS", tmp_path)
    systemctl("true")
    named = Units(Commands(), ("hub.service", "proxy.service"), ("images.timer",))
    await named.start()
    await named.end_timers()
    assert "images.timer" not in (tmp_path / "asked").read_text()
    (tmp_path / "images.timer").touch()
    (tmp_path / "asked").unlink()
    await named.start()
    await named.restart_hub()
    await named.end_timers()
    await named.end()
    lines = [text for text in (tmp_path / "asked").read_text().splitlines() if "images.timer" in text]
    assert lines == ["enable --now images.timer"] * 2 + ["disable --now images.timer"] * 2


async def test_what_systemd_refuses_is_said_with_where_to_look(systemctl: Forge) -> None:
    with pytest.raises(CarmeError, match=r"unit is masked\. See: journalctl -u hub\.service -u proxy\.service"):
        await systemctl("echo 'unit is masked' >&2; exit 1").start()


async def test_only_units_that_are_there_are_ended(
    systemctl: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carme_hub.cli.setup.services.UNITS", tmp_path / "units")
    (tmp_path / "units").mkdir()
    named = systemctl("true")
    await named.end()
    assert not (tmp_path / "asked").exists(), "systemctl refuses a unit that is not there"
    (tmp_path / "units/hub.service").touch()
    await named.end()
    assert (tmp_path / "asked").read_text() == "disable --now hub.service\n"


async def test_a_hub_is_there_also_where_its_login_page_is_somebody_elses(unused_tcp_port: int) -> None:
    """A log-in at a provider has no form here, or leads there at once."""
    served: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        served.append(request.path)
        if len(served) < 3:  # the proxy, which has no route yet
            return web.Response(status=404, text="<form>")
        if request.path == "/hub/api/":
            return web.json_response({"version": "5.4.0"})
        raise web.HTTPFound("https://login.example.org/")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", unused_tcp_port).start()
    url = f"http://127.0.0.1:{unused_tcp_port}"
    try:
        assert await wait_until_ready(url, 10) < 10
        served[:] = []
        with pytest.raises(CarmeError, match=r"/hub/api/ is not there after 0 s \(status 404\)"):
            await wait_until_ready(url, 0.2)
    finally:
        await runner.cleanup()


def test_a_state_folder_that_is_anothers_is_not_taken(tmp_path: Path) -> None:
    me = getpass.getuser()
    check_state_folder(str(tmp_path / "none"), me)
    check_state_folder(str(tmp_path), me)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="does not belong"):
        check_state_folder(str(tmp_path / "file"), me)
    with pytest.raises(ConfigError, match="state_folder: /usr is there and does not belong to nobody"):
        check_state_folder("/usr", "nobody")


def test_the_state_folder_is_made_private_where_systemd_does_not_make_it(tmp_path: Path) -> None:
    folder = tmp_path / "srv/hub"
    before = os.umask(0o077)  # as an administrator may have it
    try:
        make_state_folder(str(folder), getpass.getuser())
    finally:
        os.umask(before)
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
