"""Enroot: a squashfs file or an unpacked directory; executes in place.

Its folders are in the session folder, since batch steps have no XDG_RUNTIME_DIR. Its NVIDIA hook provides the GPUs, and
"all" means all that the job's cgroup allows. ``root="layer"`` is ``--rw`` on a squashfs file, whose overlay is deleted
at the end; a directory image stays read-only.
"""

from __future__ import annotations

from carme_hub.errors import ContainerError

from . import check, layout
from .runtime import ContainerRequest, Format, Plan


class Enroot:
    """Renders ``enroot start``."""

    name = "enroot"
    formats: frozenset[Format] = frozenset({"dir", "sqfs"})

    def render(self, request: ContainerRequest) -> Plan:
        """Return the plan."""
        check.check(request)
        if request.image.format not in self.formats or request.image.base == "host":
            raise ContainerError("Enroot runs squashfs files and directories that contain a whole system")
        environ = layout.environ(request) | nvidia(request)
        names = [*environ, *layout.pass_env(request)]
        store, _, image = request.image.path.rpartition("/")
        if request.image.format == "sqfs":
            image = request.image.path
        else:
            environ["ENROOT_DATA_PATH"] = store
        for purpose in ("RUNTIME", "CACHE", "TEMP"):
            environ[f"ENROOT_{purpose}_PATH"] = f"{request.session_folder}/enroot"
        argv = ["enroot", "start"]
        if request.root == "layer" and request.image.format == "sqfs":
            argv.append("--rw")
        for name in dict.fromkeys(names):
            argv += ["-e", name]
        for folder in layout.folders(request):
            argv += ["-m", f"{folder}:{folder}:none:x-create=dir,bind,rw"]
        for bind in request.binds:
            optional = ",nofail" if bind.optional else ""
            argv += ["-m", f"{bind.source}:{bind.destination}:none:x-create=dir,bind,{bind.mode}{optional}"]
        argv += [image, "env", f"--chdir={layout.workdir(request)}", *request.argv]
        return Plan(
            argv=tuple(argv),
            environ=environ,
            pass_env=layout.pass_env(request),
            supervise="exec",
            preflight=(request.image.path,),
        )


def nvidia(request: ContainerRequest) -> dict[str, str]:
    """Return the variables for the NVIDIA hook. Host numbers are an "unknown device" in a job with confined devices."""
    if not request.gpus:
        return {"NVIDIA_VISIBLE_DEVICES": "void"}
    return {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
