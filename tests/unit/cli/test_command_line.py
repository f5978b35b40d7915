"""The ``carme-hub`` command: each subcommand is there, and makes, runs or says what it should."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import re
import ssl
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jupyterhub.utils import random_port
from traitlets.config import Application

import carme_hub
from carme_hub.cli.app import CarmeHubApp
from carme_hub.cli.base import table
from carme_hub.cli.db import UpgradeApp
from carme_hub.cli.images.build import BuildApp
from carme_hub.cli.init import InitApp
from carme_hub.cli.proxy import ProxyApp, proxy_command
from carme_hub.errors import ConfigError

COMMAND = Path(sys.executable).with_name("carme-hub")


def carme(*argv: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environ}
    return subprocess.run([str(COMMAND), *map(str, argv)], capture_output=True, text=True, env=env, timeout=120)


def test_a_table_is_aligned_and_changes_nothing_that_is_in_it() -> None:
    rows = [("007", 1, " indented"), ("物理学", 12345, "1e5"), ("", None, "")]
    assert table(("account", "GPU-hours", "for"), rows, "GPU-hours").split("\n") == [
        "account  GPU-hours  for",
        "007              1   indented",
        "物理学       12345  1e5",  # each of these letters is as wide as two
        "              None",
    ]
    assert table(("", "is"), []) == "  is"


def test_it_says_its_version() -> None:
    assert carme("--version").stdout.strip() == carme_hub.__version__


def test_what_an_image_command_prints_is_the_images_path(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def build_with_progress(store: Path, progress: Callable[[str], None]) -> Path:
        progress("Building the image")
        return store / "default-1"

    monkeypatch.setattr("carme_hub.cli.images.build.build_default_image", build_with_progress)
    monkeypatch.setattr("carme_hub.cli.images.build.mark_kept", lambda image: None)
    BuildApp(store="/opt/images").start()
    assert capsys.readouterr() == ("/opt/images/default-1\n", "Building the image\n")


def test_without_a_subcommand_it_says_which_there_are() -> None:
    done = carme()
    assert done.returncode == 1
    for name in CarmeHubApp.subcommands:
        assert name in done.stdout


def unread(*argv: str | Path, program: tuple[str, ...] = (str(COMMAND),)) -> subprocess.CompletedProcess[str]:
    """Run the command with nobody left to read what it prints."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        command = [*program, *map(str, argv)]
        return subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    finally:
        os.close(writing)


@pytest.mark.parametrize("argv", [("--version",), ("--help-all",), *((n, "--help") for n in CarmeHubApp.subcommands)])
def test_a_reader_that_goes_away_is_no_error(argv: tuple[str, ...]) -> None:
    done = unread(*argv)
    assert done.stderr == ""
    assert done.returncode in (0, 141)


SAYS_MUCH = """
import sys
from carme_hub.cli import app
from carme_hub.cli.base import ConfiguredApp
class Much(ConfiguredApp):
    name = description = "carme-hub much"
    async def work(self):
        for number in range(20_000):
            print("what does not fit into one buffer", number)
        return 0
app.CarmeHubApp.subcommands["much"] = (Much, "")
app.main()
"""


def test_a_long_answer_that_is_read_in_part_is_no_error() -> None:
    """What fits into a buffer is written as the command ends; a report or a list fails in the middle of its work."""
    done = unread("much", program=(sys.executable, "-c", SAYS_MUCH))
    assert done.stderr == ""
    assert done.returncode == 141


def test_the_command_of_a_session_ends_quietly_too() -> None:
    done = unread("--help", program=(sys.executable, "-m", "carme_hub.training.command"))
    assert done.stderr == ""
    assert done.returncode in (0, 141)


def test_the_doctor_says_nothing_more_once_nobody_reads(site: Path) -> None:
    done = unread("doctor", "--config", site)
    assert "Error" not in done.stderr
    assert done.returncode == 141


@pytest.mark.parametrize("name", sorted(CarmeHubApp.subcommands))
def test_every_subcommand_can_be_loaded(name: str) -> None:
    target, _ = CarmeHubApp.subcommands[name]
    module, _, attribute = target.rpartition(".")
    app = getattr(importlib.import_module(module), attribute)
    assert app.description


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tmp_path.chmod(0o700)
    monkeypatch.delenv("CONFIGPROXY_AUTH_TOKEN", raising=False)
    file = tmp_path / "jupyterhub_config.py"
    file.write_text(
        "from carme_hub import configure\n"
        "c = get_config()\n"
        f"configure(c, state_folder={str(tmp_path / 'state')!r})\n"
        f"c.JupyterHub.bind_url = 'http://127.0.0.1:{random_port()}'\n"
        f"c.ConfigurableHTTPProxy.api_url = 'https://127.0.0.1:{random_port()}'\n"
        "c.JupyterHub.spawner_class = 'simple'\n"
    )
    return file


def test_init_makes_private_secrets_once(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    InitApp(config_path=str(site)).start()
    assert "made" in capsys.readouterr().out
    state = site.parent / "state"
    files = [path for path in state.rglob("*") if path.name in ("jupyterhub_cookie_secret", "proxy-token")]
    assert len(files) == 2
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    for path in (*files, *state.rglob("*.key")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    before = {path: path.read_text() for path in files}
    InitApp(config_path=str(site)).start()
    assert "made" not in capsys.readouterr().out
    assert {path: path.read_text() for path in files} == before


def test_the_proxys_command_line_holds_no_secret(site: Path) -> None:
    InitApp(config_path=str(site)).start()
    token = (site.parent / "state" / "proxy-token").read_text().strip()
    argv, environ = proxy_command(site)
    assert environ["CONFIGPROXY_AUTH_TOKEN"] == token
    assert not any(token in word for word in argv)
    assert "--api-ssl-reject-unauthorized" in argv
    assert "--client-ssl-key" in argv


def test_the_proxy_needs_its_token_and_a_hub_that_does_not_start_it(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="carme-hub init"):
        proxy_command(site)
    site.write_text(site.read_text() + "c.ConfigurableHTTPProxy.should_start = True\n")
    monkeypatch.setenv("CONFIGPROXY_AUTH_TOKEN", "abc")
    with pytest.raises(ConfigError, match="should_start"):
        proxy_command(site)


async def test_the_proxy_comes_up_and_lets_only_the_hub_in(site: Path) -> None:
    await asyncio.to_thread(InitApp(config_path=str(site)).start)  # it has an event loop of its own
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    process = await asyncio.create_subprocess_exec(
        *(COMMAND, "proxy", "--config", site),
        env={**os.environ, "PATH": path},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(120):
            while b"Proxy API at https" not in await process.stdout.readline():
                pass
        public, api = re.findall(r"://127\.0\.0\.1:(\d+)", site.read_text())
        assert await first_line(int(public)) != b""
        stranger = ssl.create_default_context()  # without the hub's certificate
        stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
        with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
            assert await first_line(int(api), stranger) != b""
    finally:
        process.terminate()
        await process.communicate()


async def first_line(port: int, tls: ssl.SSLContext | None = None) -> bytes:
    """Ask and return the first line of the answer; the proxy says that it listens a moment before it does."""
    async with asyncio.timeout(60):
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
                break
            except ConnectionRefusedError:
                await asyncio.sleep(0.05)
    writer.write(b"GET / HTTP/1.0\r\n\r\n")
    try:
        return await reader.readline()
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@pytest.mark.parametrize("app", [InitApp, ProxyApp, UpgradeApp])
def test_a_configuration_that_fails_is_said_in_one_line(site: Path, app: type[Application]) -> None:
    site.write_text("1 / 0\n")
    with pytest.raises(SystemExit) as ended:
        app(config_path=str(site)).start()
    assert str(ended.value.code).startswith(f"{app.name}: {site}")
    assert str(ended.value.code).endswith("fails: ZeroDivisionError: division by zero")


def test_the_database_is_upgraded_on_demand(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    InitApp(config_path=str(site)).start()
    UpgradeApp(config_path=str(site)).start()
    assert "schema carme" in capsys.readouterr().out
    assert stat.S_IMODE((site.parent / "state" / "carme-hub.sqlite").stat().st_mode) == 0o600
