"""Podman, rootless: an image folder of the site, or an image of the user's own store; it never pulls.

A folder runs as an overlay, so that nothing is copied for a user; Podman's state is in a folder of the session on the
node (a home may be on NFS, where Podman's storage fails, and Podman stores its first path permanently), and is removed
afterwards. The image's files belong to nobody inside, so nothing can be created in its folders: a missing mount point
is created in a tmpfs on the first folder of its path.

The payload is a child of Podman's monitor, and after Slurm's TERM the monitor and the client end: so the batch script
finds the payload itself (``supervise="podman"``), and output goes to the log without the monitor. Only crun keeps the
user's supplementary groups; Podman does not support that with runc.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from carme_hub.errors import ContainerError

from . import check, layout
from .runtime import ContainerRequest, Format, Plan

#: A tmpfs would hide the image's files here, so mount points below these must be in the image.
IMAGE_FOLDERS = frozenset({"boot", "opt", "root", "srv", "var"})
#: Folders that are a tmpfs already.
TMPFS = frozenset({"layer", "run", "tmp"})


class Podman:
    """Renders ``podman run``.

    Args:
        engine: "crun" (cgroup v2, or only v1) or "runc" (which also supports the hybrid mode).
        device: CDI name of the devices for a session with GPUs; "" = none.
    """

    name = "podman"
    formats: frozenset[Format] = frozenset({"dir", "ref"})

    def __init__(self, engine: str = "crun", device: str = "nvidia.com/gpu=all") -> None:
        self.engine = engine
        self.device = device

    def render(self, request: ContainerRequest) -> Plan:
        """Return the plan."""
        check.check(request)
        if request.image.format not in self.formats or request.image.base == "host":
            raise ContainerError(
                "Podman runs folders that contain a whole system, and images of the user's own store, given as a "
                "reference such as localhost/lab:1"
            )
        podman = ["podman", "--log-level=error", "--cgroup-manager=cgroupfs", "--runtime", self.engine]
        return self._folder(request, podman) if request.image.format == "dir" else self._reference(request, podman)

    def _folder(self, request: ContainerRequest, podman: list[str]) -> Plan:
        """Return the plan for an image folder, which belongs to the site and is shared by all sessions."""
        image = request.image.path
        # Podman accepts at most 50 characters for runroot.
        node_folder = f"/tmp/carme-{PurePosixPath(request.session_folder).name.replace('-', '')}"  # noqa: S108
        podman += ["--storage-driver=overlay", "--events-backend=none", "--network-config-dir", f"{node_folder}/net"]
        for option, name in (("--root", "root"), ("--runroot", "run"), ("--tmpdir", "tmp")):
            podman += [option, f"{node_folder}/{name}"]
        tmpfs, required = mount_points(request)
        # runc gives a tmpfs the mode of the image's folder: U makes it the user's.
        size = f",size={request.tmp_mib}m" if request.tmp_mib else ""
        argv = ["--read-only", f"--tmpfs=/tmp:rw,U,mode=1777{size}", "--tmpfs=/var/tmp:rw,U,mode=1777"]
        if request.root == "layer":
            argv.append(f"--tmpfs={layout.LAYER}:rw,U,mode=755")
        argv += [f"--tmpfs={folder}:rw,mode=755,notmpcopyup" for folder in tmpfs]
        argv.append(f"--volume={image}/etc:/etc:O")  # here Podman mounts hosts, passwd and the like
        return Plan(
            argv=(*podman, *self._run(request), *argv, "--rootfs", f"{image}:O", *request.argv),
            environ=layout.environ(request) | {"XDG_RUNTIME_DIR": node_folder},
            pass_env=layout.pass_env(request),
            supervise="podman",
            node_folder=node_folder,
            preflight=(image, *(image + point for point in required)),
            cleanup=(
                (*podman, "rm", "--all", "--force", "--time=0"),
                # Leftovers of a failed removal belong to ids that exist only in the user's namespace.
                (*podman, "unshare", "rm", "-rf", "--one-file-system", f"{node_folder}/root/overlay-containers"),
                ("rm", "-rf", "--one-file-system", node_folder),
            ),
        )

    def _reference(self, request: ContainerRequest, podman: list[str]) -> Plan:
        """Return the plan for an image of the user's store."""
        cid = f"{request.session_folder}/podman.cid"
        argv = [f"--cidfile={cid}"]
        if request.root == "ro":
            argv.append("--read-only")
        if request.tmp_mib:
            argv.append(f"--tmpfs=/tmp:rw,mode=1777,size={request.tmp_mib}m")
        return Plan(
            argv=(*podman, *self._run(request), *argv, request.image.path, *request.argv),
            environ=layout.environ(request) | {"XDG_RUNTIME_DIR": request.session_folder},  # a batch step has none
            pass_env=layout.pass_env(request),
            supervise="podman",
            cleanup=((*podman, "rm", "--force", "--ignore", "--time=0", "--cidfile", cid),),
        )

    def _run(self, request: ContainerRequest) -> list[str]:
        """Return ``run`` and the options of every container."""
        # runc needs a cgroup for each container; the monitor stays in the job's in both cases.
        crun = ["--cgroups=disabled", "--group-add=keep-groups"]
        argv = ["run", "--rm", "--init", *(crun if self.engine == "crun" else ["--cgroups=no-conmon"])]
        argv += [
            "--pull=never",
            "--network=host",
            "--uts=host",
            self._shm(request),
            "--userns=keep-id",
            "--cap-drop=all",
        ]
        argv += ["--security-opt=no-new-privileges", "--entrypoint=", "--log-driver=passthrough"]
        if request.gpus and self.device:
            argv += [f"--device={self.device}", "--security-opt=label=disable"]
        for folder in layout.folders(request):
            argv.append(f"--volume={folder}:{folder}:rw")
        for bind in request.binds:
            if bind.optional:
                raise ContainerError(f"Podman cannot bind {bind.source} only if it exists")
            argv.append(f"--volume={bind.source}:{bind.destination}:{bind.mode}")
        for name in dict.fromkeys((*layout.environ(request), *layout.pass_env(request))):
            argv.append(f"--env={name}")
        return [*argv, f"--workdir={layout.workdir(request)}"]

    def _shm(self, request: ContainerRequest) -> str:
        return f"--volume={request.shm}:/dev/shm:rw" if request.shm else "--shm-size=0"


def mount_points(request: ContainerRequest) -> tuple[list[str], list[str]]:
    """Return the folders that need a tmpfs for mount points in them, and the mount points that the image must have."""
    points = [*layout.folders(request), *(bind.destination for bind in request.binds)]
    tmpfs, required = [], []
    for point in points:
        first, *rest = PurePosixPath(point).parts[1:]
        if not rest or first in TMPFS or f"/{first}" in points:
            continue  # Podman creates it
        if first in IMAGE_FOLDERS:
            required.append(point)
        elif f"/{first}" not in tmpfs:
            tmpfs.append(f"/{first}")
    return tmpfs, required
