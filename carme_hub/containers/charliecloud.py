"""Charliecloud: ``ch-run`` executes in place, with only a user and a mount namespace.

Limitations: binds are always read-write (0.31: a read-only bind is silently writable, so one is refused), their mount
points must be in the image, all of the node's /dev and processes are visible, and ``root="layer"`` gives only the
private /tmp. CUDA_VISIBLE_DEVICES and the job's cgroup decide which GPU is used; driver libraries must be in the image
(``ch-fromhost --nvidia``).
"""

from __future__ import annotations

from carme_hub.errors import ContainerError

from . import check, layout
from .runtime import ContainerRequest, Format, Plan


class Charliecloud:
    """Renders ``ch-run``."""

    name = "charliecloud"
    formats: frozenset[Format] = frozenset({"dir", "sqfs"})

    def render(self, request: ContainerRequest) -> Plan:
        """Return the plan."""
        check.check(request)
        if request.image.format not in self.formats or request.image.base == "host":
            raise ContainerError("Charliecloud runs directories and squashfs files that contain a whole system")
        if not request.user:
            raise ContainerError("Charliecloud needs the user's name")
        for bind in request.binds:
            if bind.mode == "ro":
                raise ContainerError(
                    f"Charliecloud cannot bind {bind.source} read-only; bind it 'rw' if its permissions are enough, "
                    "or use bubblewrap or Apptainer"
                )
        squash = request.image.format == "sqfs"
        preflight = [request.image.path, *(["/dev/fuse"] if squash else [])]
        argv = ["ch-run", "--private-tmp"]
        for folder in layout.folders(request):
            if folder == f"/home/{request.user}":
                argv.append("--home")  # the only bind that makes its own mount point
            else:
                argv += ["-b", f"{folder}:{folder}"]
                preflight += [] if squash else [request.image.path + folder]
        for bind in request.binds:
            argv += ["-b", f"{bind.source}:{bind.destination}"]
            preflight += [] if squash else [request.image.path + bind.destination]
        argv += ["-c", layout.workdir(request), request.image.path, "--", *request.argv]
        return Plan(
            argv=tuple(argv),
            environ=layout.environ(request),
            pass_env=layout.pass_env(request),
            supervise="child" if squash else "exec",
            preflight=tuple(preflight),
        )
