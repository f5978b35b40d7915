"""Checks of container requests for all runtimes; each refusal says what is wrong.

The hub checks names and texts here; on the node the batch script checks as the user, just before the binds are made,
whether a path exists and where its links lead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from carme_hub.errors import ContainerError

from .runtime import Bind, ContainerRequest, Image

#: Never bound, nor anything below, whatever a site allows: they contain secrets, or sockets that give access.
FORBIDDEN_SOURCES = ("/boot", "/dev", "/etc", "/proc", "/root", "/run", "/sys", "/var/run", "/var/spool/slurmd")
#: Never bound over, nor anything below: their contents decide what runs inside.
FORBIDDEN_DESTINATIONS = (
    "/bin",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/proc",
    "/sbin",
    "/sys",
    "/usr",
)
#: Variables that control the loader, an interpreter or a container runtime rather than the user's program.
FORBIDDEN_NAMES = frozenset({"BASH_ENV", "ENV", "IFS", "PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "PERL5LIB"})
FORBIDDEN_PREFIXES = ("APPTAINER", "BWRAP", "CH_", "CONTAINERS_", "ENROOT", "LD_", "PODMAN", "SINGULARITY")
#: Variables of the hub and of Slurm, which users may not set.
OWN_PREFIXES = ("CARME_", "JUPYTERHUB_", "SLURM_", "SLURMD_")
SECRET_NAMES = frozenset({"JUPYTERHUB_API_TOKEN", "JPY_API_TOKEN", "SLURM_JWT", "CARME_DATA"})

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:/#-]*")
#: Characters with a meaning in the bind syntax of some runtime.
_BIND_SYNTAX = re.compile(r"[:,\s\\\"'$`\x00-\x1f\x7f]")


def check_path(path: str, what: str) -> None:
    """Refuse a path that is not absolute and normalized, or that a runtime's bind syntax could misread."""
    if not path.startswith("/") or path.startswith("//"):
        raise ContainerError(f"{what} must be an absolute path, not {path!r}")
    if _BIND_SYNTAX.search(path):
        raise ContainerError(f"{what} {path!r} contains a space, colon, comma, quote or control character")
    if str(PurePosixPath(path)) != path or ".." in PurePosixPath(path).parts:
        raise ContainerError(f"{what} {path!r} must be written plainly, without '..', '//' or a slash at the end")


def under(path: str, trees: Iterable[str]) -> bool:
    """Return whether a normalized path is one of the trees or below one."""
    return any(path == tree or path.startswith(tree.rstrip("/") + "/") for tree in trees)


def check_bind(bind: Bind) -> None:
    """Refuse a bind that is never allowed."""
    check_path(bind.source, "the source of a bind")
    check_path(bind.destination, "the destination of a bind")
    if bind.source == "/" or under(bind.source, FORBIDDEN_SOURCES):
        raise ContainerError(f"{bind.source} is never bound into a container")
    if bind.destination == "/" or under(bind.destination, FORBIDDEN_DESTINATIONS):
        raise ContainerError(f"nothing is bound over {bind.destination}")
    if bind.mode not in ("ro", "rw"):
        raise ContainerError(f"a bind is 'ro' or 'rw', not {bind.mode!r}")


def check_allowed(binds: Sequence[Bind], roots: Sequence[str]) -> None:
    """Refuse a bind whose source is outside of the folders that the site allows; an empty list allows none."""
    for bind in binds:
        check_bind(bind)
        if not under(bind.source, roots):
            allowed = ", ".join(roots) or "no folder"
            raise ContainerError(f"{bind.source} may not be bound; this site allows what is under: {allowed}")


def check_image(image: Image) -> None:
    """Refuse an image path or reference that a runtime could misread."""
    if image.format != "ref":
        check_path(image.path, "the path of an image")
    elif not _REFERENCE.fullmatch(image.path) or ".." in image.path:
        raise ContainerError(f"{image.path!r} is not a reference to an image")


def check_environ(environ: Mapping[str, str]) -> None:
    """Refuse variables that control loader or runtime, secrets, and invalid names or values."""
    for name, value in environ.items():
        check_name(name)
        if name in SECRET_NAMES:
            raise ContainerError(f"{name} is a secret and must not be in a container's environment")
        if "\0" in value:
            raise ContainerError(f"the value of {name} contains a NUL")


def check_name(name: str) -> None:
    """Refuse an invalid or forbidden name of a variable."""
    if not _NAME.fullmatch(name):
        raise ContainerError(f"{name!r} is not the name of an environment variable")
    if name in FORBIDDEN_NAMES or name.startswith(FORBIDDEN_PREFIXES):
        raise ContainerError(f"{name} may not be set: it controls the loader, an interpreter or the container runtime")


def check_user_environ(environ: Mapping[str, str]) -> None:
    """Refuse variables that users may not set, including those of the hub and Slurm."""
    check_environ(environ)
    for name in environ:
        if name.startswith(OWN_PREFIXES) or name in ("HOME", "USER", "LOGNAME", "PATH", "CUDA_VISIBLE_DEVICES"):
            raise ContainerError(f"{name} is set by the hub or by Slurm")


def check(request: ContainerRequest) -> None:
    """Refuse a request that breaks a rule; every runtime calls this before it renders."""
    check_image(request.image)
    check_path(request.home, "the home")
    check_path(request.session_folder, "the session folder")
    if request.home == "/" or under(request.home, FORBIDDEN_DESTINATIONS):
        raise ContainerError(f"{request.home} cannot be a home in a container")
    if request.workdir:
        check_path(request.workdir, "the working folder")
    if request.shm:
        check_path(request.shm, "the folder for shared memory")
    for bind in request.binds:
        check_bind(bind)
    check_environ(request.environ)
    for name in request.pass_env:
        check_name(name)
        if name in SECRET_NAMES:
            raise ContainerError(f"{name} is a secret and is not passed in")
    if not request.argv or request.argv[0].startswith("-") or any("\0" in word for word in request.argv):
        raise ContainerError("the command must be a program and its arguments")
    if request.tmp_mib < 0:
        raise ContainerError("the size of /tmp is zero or more")
