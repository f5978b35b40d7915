"""A service ends with its hub, also with one that was killed while the service was still being imported."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from carme_hub.services import parent_process


def test_who_has_another_parent_by_now_has_lost_the_hub() -> None:
    assert not parent_process.is_gone(os.getppid())
    assert parent_process.is_gone(os.getppid() + 1)


@pytest.mark.parametrize(("words", "gone"), [(b"/sbin/init\0", True), (b"python3\0/opt/bin/jupyterhub\0-f\0x", False)])
def test_init_is_the_hub_only_where_it_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: bytes, gone: bool
) -> None:
    (tmp_path / "cmdline").write_bytes(words)
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert parent_process.is_gone(1, tmp_path / "cmdline") is gone
    assert not parent_process.is_gone(1, tmp_path / "not there")


@pytest.mark.parametrize("name", ["quotas", "reservations"])
def test_a_service_whose_hub_died_at_once_ends_by_itself(name: str, tmp_path: Path) -> None:
    config = tmp_path / "jupyterhub_config.py"
    config.write_text(f"c.CarmeStore.url = 'sqlite:///{tmp_path}/carme.sqlite'\n", encoding="utf-8")
    argv = [sys.executable, "-m", f"carme_hub.services.{name}", "--config", str(config)]
    environ = {**os.environ, "JUPYTERHUB_SERVICE_NAME": name, "JUPYTERHUB_API_TOKEN": "x" * 32}
    # The hub of this service starts it and is gone, as one that is killed then.
    hub = f"import subprocess; print(subprocess.Popen({argv!r}, stdout=-3, stderr=-3).pid)"
    done = subprocess.run([sys.executable, "-c", hub], env=environ, capture_output=True, text=True, check=True)
    pid = int(done.stdout)
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and "Z" not in _state(pid):
        if time.monotonic() > deadline:
            os.kill(pid, 9)
            pytest.fail("it runs on without its hub")
        time.sleep(0.1)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
