"""Images of one file: mounted without root where users may open /dev/fuse, and said where they may not.

In a mount namespace of the test's own, with a /dev/fuse of its own: a machine without udev may have one for root alone.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from carme_hub.containers.apptainer import Apptainer
from carme_hub.containers.charliecloud import Charliecloud
from carme_hub.containers.images import read_image
from carme_hub.containers.runtime import ContainerRequest, Runtime
from carme_hub.containers.store.add import AddOptions, add_image
from carme_hub.node import batch_script
from carme_hub.sandbox.images.apptainer import ensure_apptainer

USER = "alice"
#: Arguments: the device to make, its mode, and a command as that user, with its environment.
STORY = r"""
set -e
mknod "$1" c 10 229; chmod "$2" "$1"; mount --bind "$1" /dev/fuse
shift 2
exec runuser -u alice -- env -i "$@"
"""
#: The batch script's look at the node, as a program.
LOOK = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("launch", sys.argv[1])
launch = importlib.util.module_from_spec(spec)
spec.loader.exec_module(launch)
launch.check_node({"plan": json.loads(sys.argv[2])})
"""


def small_system(folder: Path) -> Path:
    """Make a system with a shell and two programs of this machine, and the libraries that they need."""
    found = {Path(f"/usr/bin/{name}") for name in ("sh", "cat", "id")}
    for program in list(found):
        said = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        found |= {Path(path) for path in re.findall(r"(/lib\S+)", said)}
    for file in found:
        to = folder / str(file if file.is_relative_to("/usr") else f"/usr{file}").lstrip("/")
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file.resolve(), to)
    for name in ("bin", "lib", "lib64"):
        (folder / name).symlink_to(f"usr/{name}")
    (folder / "usr/text").write_text("of the image\n")
    return folder


@pytest.fixture
def image(open_path: Path, tmp_path: Path) -> Path:
    (open_path / "store").mkdir(mode=0o755)
    return add_image(small_system(tmp_path), open_path / "store", "packed", options=AddOptions(form="sqfs"))


def request_of(image: Path) -> ContainerRequest:
    entry = pwd.getpwnam(USER)
    argv = ("sh", "-c", "cat /usr/text; id -u; echo no > /usr/new || echo read-only")
    return ContainerRequest(
        read_image(image), argv, entry.pw_dir, entry.pw_dir, USER, entry.pw_uid, entry.pw_gid, root="ro"
    )


def in_namespace(mode: str, device: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = ["unshare", "-m", "bash", "-c", STORY, "story", str(device), mode, *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60, cwd="/")


@pytest.mark.parametrize("kind", ["charliecloud", "apptainer"])
def test_it_is_mounted_without_root(image: Path, open_path: Path, kind: str) -> None:
    runtime: Runtime = Charliecloud() if kind == "charliecloud" else Apptainer(str(ensure_apptainer()))
    plan = runtime.render(request_of(image))
    environ = {"PATH": os.defpath, "USER": USER, "HOME": pwd.getpwnam(USER).pw_dir, **plan.environ}
    words = [f"{name}={value}" for name, value in environ.items()]
    done = in_namespace("666", open_path / "fuse", *words, *plan.argv)
    assert done.stdout.splitlines() == ["of the image", str(pwd.getpwnam(USER).pw_uid), "read-only"], done.stderr


def test_where_users_may_not_open_the_device_the_session_says_so(image: Path, open_path: Path) -> None:
    plan = Charliecloud().render(request_of(image))
    program = shutil.copy(batch_script.__file__, open_path / "launch.py")
    data = json.dumps({"argv": plan.argv, "preflight": plan.preflight})
    look = ["/usr/bin/python3", "-IS", "-c", LOOK, str(program), data]
    assert in_namespace("666", open_path / "fuse", f"PATH={os.defpath}", *look).stderr == ""
    done = in_namespace("600", open_path / "closed", f"PATH={os.defpath}", *look)
    assert "(76, 'the container runtime needs /dev/fuse, which users may not open on this node')" in done.stderr
