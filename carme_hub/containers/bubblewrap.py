"""bubblewrap, the default: rootless, starts in 5 to 9 ms, on a directory image.

The root is a small tmpfs with the image's top-level folders bound into it read-only ("underlay"), so that any mount
point is possible. User, pid and ipc namespaces are private and all capabilities are dropped; the network and the host
name are the node's, as distributed training needs. ``root="layer"`` leaves that tmpfs writable, with a folder
``/layer``: new files are possible outside of the image's folders, in memory, until the session ends.
"""

from __future__ import annotations

from carme_hub.errors import ContainerError

from . import check, layout
from .runtime import ContainerRequest, Format, Plan

#: Top-level folders of an image. They are listed here because rendering does not read the file system.
TOP_FOLDERS = (
    *("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "opt", "srv", "var"),
    *("app", "apps", "conda", "gnu", "nix", "workspace"),
)
HOST_TOP_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr")
#: From the node's /etc, for an image without one: names, loader, certificates, fonts; no settings of services.
HOST_ETC = (
    *("alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "crypto-policies", "fonts"),
    *("gai.conf", "group", "host.conf", "hosts", "inputrc", "ld.so.cache", "ld.so.conf", "ld.so.conf.d"),
    *("localtime", "mime.types", "nsswitch.conf", "OpenCL", "passwd", "pki", "profile", "protocols"),
    *("resolv.conf", "services", "ssl", "terminfo", "timezone"),
)
#: From the node's /etc, over an image's own.
NODE_ETC = ("group", "hosts", "passwd", "resolv.conf")
#: Sockets through which the C library looks up users that are in no file.
NAME_SERVICES = ("/var/lib/sss/pipes", "/run/nslcd")


class Bubblewrap:
    """Renders ``bwrap`` under the batch script's supervisor."""

    name = "bubblewrap"
    formats: frozenset[Format] = frozenset({"dir"})

    def render(self, request: ContainerRequest) -> Plan:
        """Return the plan."""
        check.check(request)
        if request.image.format not in self.formats:
            raise ContainerError(
                f"bubblewrap runs directories, not {request.image.format}: `carme-hub image add NAME FILE` makes one "
                "of the file, or use Charliecloud or Apptainer"
            )
        environ = layout.environ(request)
        argv = ["bwrap", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--die-with-parent", "--cap-drop", "ALL"]
        argv += _host_root(request) if request.image.base == "host" else _own_root(request)
        argv += ["--dev", "/dev", "--proc", "/proc", "--ro-bind", "/sys", "/sys"]
        if request.shm:
            argv += ["--bind", request.shm, "/dev/shm"]  # noqa: S108  a path inside
        argv += _writable(request)
        if request.image.base == "host":
            argv += ["--symlink", "../run", "/var/run"]  # the name by which nslcd's library finds its socket
            for socket in NAME_SERVICES:
                argv += ["--ro-bind-try", socket, socket]
        if request.gpus:
            argv += _gpus(request, environ)
        for folder in layout.folders(request):
            argv += ["--bind", folder, folder]
        for bind in request.binds:
            flag = ("--ro-bind" if bind.mode == "ro" else "--bind") + ("-try" if bind.optional else "")
            argv += [flag, bind.source, bind.destination]
        if request.root == "ro":
            argv += ["--remount-ro", "/"]
        argv += ["--chdir", layout.workdir(request), "--", *request.argv]
        return Plan(
            argv=tuple(argv),
            environ=environ,
            pass_env=layout.pass_env(request),
            supervise="bwrap",
            preflight=(request.image.path,),
        )


def _own_root(request: ContainerRequest) -> list[str]:
    """Return the binds of an image with a whole system. bwrap follows links such as /bin."""
    argv = []
    for name in TOP_FOLDERS:
        argv += ["--ro-bind-try", f"{request.image.path}/{name}", f"/{name}"]
    for name in NODE_ETC:
        argv += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    return argv


def _host_root(request: ContainerRequest) -> list[str]:
    """Return the binds of an image that has only /opt and uses the node's system."""
    argv = []
    for name in HOST_TOP_FOLDERS:
        argv += ["--ro-bind-try", f"/{name}", f"/{name}"]
    for name in HOST_ETC:
        argv += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    return [*argv, "--ro-bind", f"{request.image.path}/opt", "/opt"]


def _writable(request: ContainerRequest) -> list[str]:
    """Return the writable folders besides the user's, all in memory."""
    size = ["--size", str(request.tmp_mib << 20)] if request.tmp_mib else []
    argv = ["--perms", "1777", *size, "--tmpfs", "/tmp"]  # noqa: S108  a path inside
    argv += ["--perms", "1777", *size, "--tmpfs", "/var/tmp", "--tmpfs", "/run"]  # noqa: S108
    # Images of before 0.3 install packages there.
    return [*argv, "--tmpfs", layout.LAYER, "--dir", f"{layout.LAYER}/python"] if request.root == "layer" else argv


def _gpus(request: ContainerRequest, environ: dict[str, str]) -> list[str]:
    """Return the binds of GPU devices and, for an image with a whole system, of the driver's libraries."""
    argv = []
    for device in layout.GPU_DEVICES:
        argv += ["--dev-bind-try", device, device]
    if request.image.base == "own":
        for folder in layout.LIBRARY_FOLDERS:
            for library in layout.DRIVER_LIBRARIES:
                argv += ["--ro-bind-try", f"{folder}/{library}", f"/run/driver/{library}"]
        argv += ["--ro-bind-try", "/usr/bin/nvidia-smi", "/run/driver/bin/nvidia-smi"]
        environ["LD_LIBRARY_PATH"] = "/run/driver"
        environ["PATH"] += ":/run/driver/bin"
    return argv
