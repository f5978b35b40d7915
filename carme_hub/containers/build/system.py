"""Images that users build by a Containerfile: the work of the job, and the image that sessions of its user have.

buildah is a program of the node and cannot run inside of a session's container, where it would need a namespace in a
namespace and the host's tools; so the job runs it beside, as the user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from carme_hub.containers import layout
from carme_hub.containers.harden import MOUNT_FILES, MOUNT_FOLDERS
from carme_hub.containers.runtime import ContainerRequest, Image, Plan
from carme_hub.domain.images.builds import Build, CannotBuild
from carme_hub.node import program

from .job import PROGRAM, BuildWork

#: The system, in the folder of the build.
ROOTFS = "rootfs"
#: Programs that the job runs are looked for here.
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PASS = ("TMPDIR", "SLURM_JOB_ID", "SLURMD_NODENAME")


@dataclass(frozen=True, slots=True)
class ContainerfileWork(BuildWork):
    """The work of a build by a Containerfile.

    Attributes:
        containerfile: in its normal form. bases: what its local names stand for, as the program takes them.
        context: folder in the user's home whose files it may take, "" for none. network: whether its steps have one.
        path: PATH of a session with it. notes: sentences for the log.
    """

    containerfile: str = ""
    bases: Sequence[Mapping[str, Any]] = ()
    context: str = ""
    network: bool = True
    path: str = layout.PATH
    notes: Sequence[str] = ()

    def said(self) -> dict[str, object]:
        """Return what the program reads."""
        more: dict[str, object] = {"containerfile": self.containerfile, "bases": [dict(each) for each in self.bases]}
        more |= {"context": self.context, "network": self.network, "path": self.path, "notes": [*self.notes]}
        return {**BuildWork.said(self), **more, "folders": [*MOUNT_FOLDERS], "files": [*MOUNT_FILES]}

    def programs(self) -> dict[str, str]:
        """Return its programs."""
        beside = {f"{name}.py": program(f"images/{name}") for name in ("buildah", "layer")}
        return {PROGRAM: program("images/system"), **beside}

    @property
    def on_node(self) -> bool:
        """It is."""
        return True

    def argv(self, session_folder: str) -> tuple[str, ...]:
        """Return the command on the node."""
        return ("/usr/bin/python3", "-IS", f"{session_folder}/{PROGRAM}", session_folder)


def plan_on_node(container: ContainerRequest) -> Plan:
    """Return a plan that runs the command of a container beside any container, as the user."""
    environ = {"HOME": container.home, "USER": container.user, "LOGNAME": container.user}
    return Plan(
        argv=container.argv,
        environ={**environ, "PATH": _PATH, "LANG": "C.UTF-8"},
        pass_env=_PASS,
        supervise="child",
    )


def own_system(build: Build, home: str, environ: Mapping[str, str]) -> Image:
    """Return a user's own image of this kind as nodes have it.

    Args:
        environ: the variables that it sets.
    """
    return Image(
        name=build.name,
        path=f"{build.layer(home)}/{ROOTFS}",
        format="dir",
        description=build.description,
        base="own",
        environ=tuple(environ.items()),
    )


def checked_context(context: str, home: str) -> str:
    """Return the folder of a build's files, which is in the user's home.

    Raises:
        CannotBuild: it is elsewhere, where the job need not see it.
    """
    path = PurePosixPath(context)
    plain = not any(ord(each) < 32 for each in context) and ".." not in path.parts and len(context) < 4096
    if not plain or not path.is_absolute() or PurePosixPath(home) not in path.parents:
        raise CannotBuild(
            "The folder with the files of a Containerfile must be below your home, and not your home itself."
        )
    return str(path)
