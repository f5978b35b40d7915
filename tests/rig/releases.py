"""Earlier releases of Carme Hub, installed from their commits as a site has them, beside this one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from carme_hub import __version__

#: The commit of each release: a clone needs the history for it.
COMMITS = {
    "0.1.0": "e7c0e540733146b8487d22cf125415d112cf2802",
    "0.2.0": "88dd23b856b023e42d192de279e0cc51f36cce68",
}
_ROOT = Path(__file__).parents[2]
_VERIFIES = "share/carme_hub/proxy/verify-servers.mjs"


def install(release: str, like: Path, folder: Path, scratch: Path) -> Path:
    """Install a release into a virtual environment, and return its folder.

    Args:
        like: an environment with everything that it needs; folder: for a copy of it by hard links.
        scratch: for its sources.
    """
    source = scratch / f"carme-hub-{release}"
    source.mkdir()
    packed = subprocess.run(
        ["git", "-c", f"safe.directory={_ROOT}", "-C", str(_ROOT), "archive", COMMITS[release]],
        capture_output=True,
        check=False,
    )
    assert packed.returncode == 0, f"{release} is not in this clone (git fetch --unshallow): {packed.stderr.decode()}"
    subprocess.run(["tar", "-x", "-C", str(source)], input=packed.stdout, check=True)
    copy(like, folder)
    uv, python = str(Path(sys.prefix) / "bin" / "uv"), f"{folder}/bin/python"
    words = ("--no-deps", "--reinstall-package", "carme-hub", "--refresh-package", "carme-hub", str(source))
    subprocess.run([uv, "pip", "install", "-q", "--python", python, *words], check=True)
    if not (folder / _VERIFIES).exists():  # of a release whose proxy compares no certificates: a plain one
        (folder / _VERIFIES).parent.mkdir(parents=True, exist_ok=True)
        (folder / _VERIFIES).write_text("// This release has a plain proxy.\n")
    return folder


def renamed(version: str, like: Path, folder: Path) -> Path:
    """Copy an environment with this release under another version, and return its folder."""
    copy(like, folder)
    (file,) = (folder / "lib").glob("python3*/site-packages/carme_hub/_version.py")
    before = file.read_text()
    text = before.replace(f'"{__version__}"', f'"{version}"')
    assert text != before
    file.unlink()  # it is a link to the other environment's
    file.write_text(text)
    file.chmod(0o644)
    return folder


def copy(like: Path, folder: Path) -> None:
    """Copy an environment by hard links; whatever replaces a file afterwards must not write into it."""
    subprocess.run(["rm", "-rf", str(folder)], check=True)
    subprocess.run(["cp", "--archive", "--link", str(like), str(folder)], check=True)
