"""The request for a container, and the plan that a runtime renders from it. Rendering is pure.

The spawners build a ``ContainerRequest``; the batch script runs the ``Plan``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

Mode = Literal["ro", "rw"]
Format = Literal["dir", "sqfs", "sif", "ref"]
Base = Literal["own", "host"]


@dataclass(frozen=True, slots=True)
class Bind:
    """One bind mount: absolute host path, absolute path in the container, read-only by default."""

    source: str
    destination: str
    mode: Mode = "ro"
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Image:
    """One container image of the site.

    Attributes:
        name: shown in the form. path: absolute path on the compute node, or a registry reference (format "ref").
        format: how it is stored: a directory, squashfs, SIF, or a reference.
        base: "own": a whole system; "host": only /opt, with the node's /usr (read-only); bubblewrap only.
        provides: backends of trainings that it has, of BACKENDS, as far as it is known.
        digest: what it is, ``sha256:HEX``; "" where that is not known. environ: variables that it sets, by name.
        layers: absolute paths inside of packages on top of it (``build.layer``), the uppermost first.
    """

    name: str
    path: str
    format: Format = "dir"
    description: str = ""
    base: Base = "own"
    provides: tuple[str, ...] = ()
    digest: str = ""
    environ: tuple[tuple[str, str], ...] = ()
    layers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """What runs in which container. It contains no secrets: those are passed in files of the session folder.

    Attributes:
        argv: the command inside. workdir: absolute path inside.
        environ: variables with values, without secrets.
        pass_env: names of variables of the job (Slurm's own) to pass in if they are set.
        gpus: whether devices and driver libraries are passed in; Slurm decides which ones.
        session_folder: the session's folder, bound read-write at the same path.
        root: "ro" read-only root; "layer" a writable layer that is deleted with the session.
        tmp_mib: size of the private /tmp, 0 = the runtime's default.
        shm: folder of the node that becomes /dev/shm inside, so that containers share memory; "" = a private one.
            Apptainer cannot bind it; Charliecloud and Enroot have all of the node's anyway.
    """

    image: Image
    argv: tuple[str, ...]
    home: str
    session_folder: str
    user: str = ""
    uid: int = 0
    gid: int = 0
    binds: tuple[Bind, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    pass_env: tuple[str, ...] = ()
    workdir: str = ""
    gpus: bool = False
    root: Literal["ro", "layer"] = "layer"
    tmp_mib: int = 0
    shm: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the batch script runs; it is the ``plan`` of the data document.

    Attributes:
        argv: the runtime's command line, without secrets.
        environ: environment of the runtime process itself (with ``pass_env``, it gets no other variables).
        supervise: "bwrap": read ``--info-fd`` and signal the payload; "exec": signals reach the payload by
            themselves; "child": the runtime forwards, its process group is killed after the grace time; "podman":
            signal the first process of the container's pid namespace, which may outlive the runtime's client.
        preflight: paths that must exist on the node.
        cleanup: argv lists to run after any end.
        node_folder: folder to create for the session (0700), which must not exist, because its name is predictable.
    """

    argv: tuple[str, ...]
    environ: Mapping[str, str] = field(default_factory=dict)
    pass_env: tuple[str, ...] = ()
    supervise: Literal["bwrap", "exec", "child", "podman"] = "child"
    preflight: tuple[str, ...] = ()
    cleanup: tuple[tuple[str, ...], ...] = ()
    node_folder: str = ""
    grace: int = 10


class Runtime(Protocol):
    """One container runtime: the supported formats, and how to render its command line."""

    name: str
    formats: frozenset[Format]

    def render(self, request: ContainerRequest) -> Plan:
        """Return the plan; ``ContainerError`` says what this runtime cannot do and which one can."""
        ...
