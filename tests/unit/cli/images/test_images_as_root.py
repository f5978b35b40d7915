"""Commands of root on images, where the hub is not root: they read its settings, and leave its files its own."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from carme_hub.cli.init import InitApp
from carme_hub.store.engine import CarmeStore

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
HUB = "games"  # an account that every Debian has


@pytest.fixture
def config(open_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration of a hub that has run as ``HUB``, with secrets and a database in its private folder."""
    monkeypatch.delenv("CONFIGPROXY_AUTH_TOKEN", raising=False)
    file, state = open_path / "jupyterhub_config.py", open_path / "state"
    file.write_text(
        "from carme_hub import configure\n"
        "c = get_config()\n"
        f"configure(c, state_folder={str(state)!r}, images=True)\n"
        "c.CarmeSlurm.cluster = 'lab'\n"
    )
    InitApp(config_path=str(file)).start()
    CarmeStore(url=f"sqlite:///{state / 'carme-hub.sqlite'}").open().dispose()
    entry = pwd.getpwnam(HUB)
    for path in (state, *state.rglob("*")):
        os.chown(path, entry.pw_uid, entry.pw_gid)
    (open_path / "store").mkdir(mode=0o755)
    return file


@pytest.mark.parametrize("words", [["publish"], ["collect", "--dry-run"]])
def test_they_work_and_the_hub_can_still_write_its_database(config: Path, words: list[str]) -> None:
    argv = [sys.executable, "-m", "carme_hub.cli", "image", *words, f"--config={config}"]
    argv.append(f"--store={config.parent}/store")
    environ = {name: value for name, value in os.environ.items() if name not in ("HOME", "CONFIGPROXY_AUTH_TOKEN")}
    done = subprocess.run(argv, env=environ, cwd="/", capture_output=True, text=True, timeout=120)  # as a unit has it
    assert done.returncode == 0, done.stderr
    owners = {path.name: path.owner() for path in (config.parent / "state").rglob("*")}
    assert set(owners.values()) == {HUB}, owners


def test_a_token_that_others_can_read_is_still_refused(config: Path) -> None:
    (config.parent / "state").chmod(0o755)
    (config.parent / "state/proxy-token").chmod(0o644)
    argv = [sys.executable, "-m", "carme_hub.cli", "image", "publish", f"--config={config}"]
    done = subprocess.run([*argv, f"--store={config.parent}/store"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "so others can use it; run: chmod 600" in done.stderr
