"""Apptainer: directories, squashfs and SIF, rootless; with private pid and ipc namespaces, minimal /dev, private /tmp.

The batch script gives the process a clean environment, so ``--cleanenv`` is not used: it would drop
CUDA_VISIBLE_DEVICES. Values are passed as APPTAINERENV_*, which override the image's own, and ``--no-eval`` prevents
that they are run as shell code. ``root="layer"`` is ``--writable-tmpfs``: it allows new files, while the image's own
folders stay read-only except for their owner. Nothing below /dev/shm can be bound, so containers share no memory (NCCL
uses the network if GPUs have no direct connection). ``sessiondir max size`` of apptainer.conf limits /tmp.
"""

from __future__ import annotations

from carme_hub.errors import ContainerError

from . import check, layout
from .runtime import ContainerRequest, Format, Plan


class Apptainer:
    """Renders ``apptainer exec``."""

    name = "apptainer"
    formats: frozenset[Format] = frozenset({"dir", "sqfs", "sif"})

    def __init__(self, program: str = "apptainer") -> None:
        self.program = program

    def render(self, request: ContainerRequest) -> Plan:
        """Return the plan."""
        check.check(request)
        if request.image.format not in self.formats or request.image.base == "host":
            raise ContainerError("Apptainer runs directories, squashfs and SIF files that contain a whole system")
        argv = [self.program, "--silent", "exec", "--contain", "--pid", "--ipc", "--no-home", "--no-eval"]
        if request.gpus:
            argv.append("--nv")
        if request.root == "layer":
            argv.append("--writable-tmpfs")
        for folder in layout.folders(request):
            argv += ["--bind", f"{folder}:{folder}:rw"]
        for bind in request.binds:
            argv += ["--bind", f"{bind.source}:{bind.destination}:{bind.mode}"]
        argv += ["--pwd", layout.workdir(request), request.image.path, *request.argv]
        values = layout.environ(request)
        outside = {name: values[name] for name in ("HOME", "USER", "LOGNAME", "LANG") if name in values}
        return Plan(
            argv=tuple(argv),
            environ=outside
            | {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
            | {f"APPTAINERENV_{name}": value for name, value in values.items() if name != "HOME"},
            pass_env=layout.pass_env(request),
            supervise="child",
            preflight=(request.image.path,),
        )
