"""A node with carme-stage-out on it, without Slurm: what Prolog and Epilog call, a scratch folder, a target, an oracle.

As root, everything is copied as an ordinary user of this machine; otherwise as whoever runs the tests. ``strike`` kills
a program with SIGKILL before its Nth change of a file, or in the middle of its Nth write.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from carme_hub.node import program
from carme_hub.paths import share_folder
from carme_hub.spawners.staging.programs import FILES

STRIKE = Path(__file__).with_name("strike.py")
JOB = 7


def ordinary_user() -> tuple[str, int, int]:
    """Return name, uid and gid of the user whose data it is."""
    if os.geteuid():
        return pwd.getpwuid(os.geteuid()).pw_name, os.geteuid(), os.getegid()
    found = next(each for each in pwd.getpwall() if 1000 <= each.pw_uid < 60000)
    return found.pw_name, found.pw_uid, found.pw_gid


class StagedNode:
    """One node, with one session's scratch folder on it.

    Args:
        base: an empty folder that everybody may enter; without symbolic links in its path.
        settings: of carme-stage-out, over those of this test.
    """

    def __init__(self, base: Path, **settings: object) -> None:
        self.base = base
        self.user, self.uid, self.gid = ordinary_user()
        self.session = str(uuid.uuid4())
        self.program = base / "libexec" / "carme-stage-out"
        self.program.parent.mkdir()
        shutil.copy(share_folder() / "libexec" / "carme-stage-out", self.program)
        for name, source in FILES.items():
            self.program.with_name(name).write_text(program(source))
        self.boot = base / "boot"
        self.boot.write_text("first\n")
        self.settings: dict[str, object] = {
            "root": str(base / "scratch"),
            "state": str(base / "state"),
            "boot_id": str(self.boot),
            **settings,
        }
        (base / "etc").mkdir()
        self.settle()
        self.home, self.target = base / "home", base / "target"
        for folder in (self.home, self.target):
            folder.mkdir()
            os.chown(folder, self.uid, self.gid)
        self.top = base / "scratch" / self.session
        self.data, self.stage = self.top / "data", self.top / "stage"

    def settle(self) -> None:
        """Write the settings."""
        (self.base / "etc" / "carme-stage-out.json").write_text(json.dumps(self.settings))

    def run(self, *arguments: str, strike: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
        """Run carme-stage-out as Slurm would for the job, and return what came of it.

        Args:
            strike: "root:N" or "user:N": where to kill it, or carme-stage below it.
        """
        argv = ["/usr/bin/python3", "-IS", *([str(STRIKE), strike] if strike else []), str(self.program), *arguments]
        slurm = {
            "SLURM_JOB_ID": str(JOB),
            "SLURM_JOB_UID": str(self.uid),
            "SLURM_JOB_USER": self.user,
            "SLURM_JOB_COMMENT": f"carme-stage {self.session} 1",
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            **environ,
        }
        return subprocess.run(argv, env=slurm, capture_output=True, text=True, check=False, timeout=60)

    def begin(self, out: object = (), in_: object = (), **plan: object) -> None:
        """Make the scratch folder, and write the plan as the batch script does."""
        done = self.run("prolog")
        assert self.stage.is_dir(), done.stderr
        self.plan({"in": list(in_), "out": list(out), **plan})  # type: ignore[call-overload]

    def plan(self, plan: Mapping[str, object]) -> None:
        """Write the plan."""
        whole = {"session": self.session, "scratch": str(self.data), "home": str(self.home), "parallel": 1, **plan}
        self.write(self.stage / "plan.json", json.dumps(whole).encode())

    def write(self, path: Path, content: bytes) -> None:
        """Write a file as the user."""
        for folder in reversed([each for each in path.parents if not each.exists()]):
            folder.mkdir()
            os.chown(folder, self.uid, self.gid)
        path.write_bytes(content)
        os.chown(path, self.uid, self.gid)

    def move(self, verb: str, strike: str = "") -> subprocess.CompletedProcess[str]:
        """Run carme-stage as the user."""
        program = [str(self.program.with_name("carme-stage")), str(self.stage), verb]
        argv = ["/usr/bin/python3", "-IS", *([str(STRIKE), strike] if strike else []), *program]
        more: dict[str, Any] = {"user": self.uid, "group": self.gid, "extra_groups": []} if not os.geteuid() else {}
        environ = {"PATH": os.environ["PATH"], "HOME": str(self.home)}
        return subprocess.run(
            argv, env=environ, capture_output=True, text=True, check=False, timeout=120, cwd="/", **more
        )

    @contextmanager
    def as_user(self) -> Iterator[None]:
        """Have this process act as the user."""
        before = os.geteuid(), os.getegid()
        os.setegid(self.gid)
        os.seteuid(self.uid)
        try:
            yield
        finally:
            os.seteuid(before[0])
            os.setegid(before[1])

    def reboot(self) -> None:
        """Have the machine start anew, as far as programs see it."""
        self.boot.write_text("second\n")

    def listed(self) -> list[dict[str, Any]]:
        """Return what ``carme-stage-out list`` prints."""
        return list(json.loads(self.run("list").stdout))

    def progress(self) -> dict[str, Any]:
        """Return the progress of the last pass."""
        return dict(json.loads((self.stage / "progress.json").read_text()))

    def nothing_left(self) -> bool:
        """Return whether neither scratch nor the list have anything of any session."""
        return not [*(self.base / "scratch").iterdir(), *(self.base / "state").iterdir()]


def sums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file below a folder under its final name, and where each link leads."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file() and not (path.name.startswith(".carme-") and path.name.endswith(".part")):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found
