"""The package of another author, examples/extension, installed as anybody installs one."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from carme_hub import entry_points

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "extension"
MODULE = "carme_hub_example"


def reread() -> None:
    """Let the hub's code of this process read anew what is installed, as a hub does that starts."""
    importlib.invalidate_caches()
    entry_points.installed.cache_clear()


@pytest.fixture(scope="session")
def installed_extension(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the package has been installed."""
    target = tmp_path_factory.mktemp("extension") / "site-packages"
    uv = Path(sys.executable).with_name("uv")
    argv = [uv, "pip", "install", "--quiet", "--offline", "--no-cache", "--no-deps", "--python", sys.executable]
    done = subprocess.run(
        [*map(str, argv), "--target", str(target), str(EXAMPLE)], capture_output=True, text=True, timeout=120, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    assert [file.name for file in target.glob("*.dist-info")] == ["carme_hub_example-1.0.dist-info"]
    return target


@pytest.fixture
def extension(installed_extension: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package is installed where this process imports from; after the test it is not."""
    monkeypatch.syspath_prepend(str(installed_extension))
    reread()
    yield installed_extension
    for name in [name for name in sys.modules if name.partition(".")[0] == MODULE]:
        del sys.modules[name]
    entry_points.installed.cache_clear()
