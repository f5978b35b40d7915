"""A container runtime: SingularityCE, on images that are a folder, a squashfs or a SIF file."""

from carme_hub.containers import layout
from carme_hub.containers.runtime import ContainerRequest, Plan


class Singularity:
    """Renders ``singularity exec``. The request has been checked, and its image has one of these formats."""

    name = "singularity"
    formats = frozenset({"dir", "sqfs", "sif"})

    def render(self, request: ContainerRequest) -> Plan:
        argv = ["singularity", "--silent", "exec", "--contain", "--pid", "--ipc", "--no-home", "--no-eval"]
        argv += ["--nv"] if request.gpus else []
        argv += ["--writable-tmpfs"] if request.root == "layer" else []
        argv += [f"--bind={folder}:{folder}:rw" for folder in layout.folders(request)]
        argv += [f"--bind={bind.source}:{bind.destination}:{bind.mode}" for bind in request.binds]
        argv += ["--pwd", layout.workdir(request), request.image.path, *request.argv]
        inside = {f"SINGULARITYENV_{name}": value for name, value in layout.environ(request).items() if name != "HOME"}
        return Plan(
            argv=tuple(argv),
            environ={"HOME": request.home, "PATH": "/usr/local/bin:/usr/bin:/bin", **inside},
            pass_env=layout.pass_env(request),
            preflight=(request.image.path,),
        )
