"""What the Docker engine is asked to make for one session: hardened, with its GPUs and no others, labelled with all
that the hub must know of it later. Rendering is pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from docker.types import DeviceRequest, LogConfig, Mount

from carme_hub.containers.runtime import Bind
from carme_hub.domain.sessions.session import Request
from carme_hub.spawners.docker.engine import SESSION

MIB = 2**20
#: What docker-py's ``create_container`` and ``create_host_config`` take.
Arguments = tuple[dict[str, Any], dict[str, Any]]
#: Where a program may need to write on a root that is read-only; a /tmp that runs programs is what pip and nvcc need.
_SCRATCH = {
    "/run": "rw,noexec,nosuid,nodev,mode=755,size=16m",
    "/var/tmp": "rw,exec,nosuid,nodev,mode=1777,size=64m",  # noqa: S108
}
#: What a site's own additions must leave alone: with these a container could have GPUs that nobody wrote down.
RESERVED_HOST = frozenset({"device_requests", "privileged", "devices", "device_cgroup_rules", "cap_add", "pid_mode"})
RESERVED_CREATE = frozenset({"labels", "host_config", "name", "environment", "user"})


@dataclass(frozen=True, slots=True)
class ContainerOwner:
    """Which server of which hub a container is."""

    prefix: str
    hub: str
    user: str
    server: str
    session: str


@dataclass(frozen=True, slots=True)
class ContainerDefaults:
    """What is the same in every container of a site.

    Attributes:
        shm_mib, tmp_mib: 0 = half of the session's memory.
        read_only: nothing but home, binds and scratch can be written.
        network: Docker network, "bridge" or "host". publish: give the server's port one on the host, at ``host_ip``.
    """

    network: str = "bridge"
    publish: bool = True
    host_ip: str = "127.0.0.1"
    read_only: bool = True
    tmp_mib: int = 0
    shm_mib: int = 0
    processes: int = 4096
    virtual: bool = False


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """One container to be.

    Attributes:
        image: a reference that is on the box. user: ``uid:gid``. groups: further gids.
        home: (Docker volume or host folder, path inside). binds: host folders of the site.
        gpus: ids of the host's GPUs. ends: UTC epoch seconds. port: where the server listens inside.
    """

    whose: ContainerOwner
    look: ContainerDefaults
    request: Request
    name: str
    image: str
    command: tuple[str, ...]
    user: str
    home: tuple[str, str]
    workdir: str
    ends: int
    port: int
    gpus: tuple[str, ...] = ()
    groups: tuple[int, ...] = ()
    binds: tuple[Bind, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)


def render(wanted: ContainerSpec) -> Arguments:
    """Return the arguments of docker-py's ``create_container`` and of its ``create_host_config``."""
    look, request = wanted.look, wanted.request
    create: dict[str, Any] = {
        "image": wanted.image,
        "name": wanted.name,
        "entrypoint": [""],  # the command is run as it is, not by a script of the image
        "command": list(wanted.command),
        "environment": environment(wanted),
        "labels": labels(wanted),
        "user": wanted.user,
        "working_dir": wanted.workdir,
        "stop_signal": "SIGTERM",
    }
    half = max(64, request.memory_mib // 2)
    scratch = {"/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={look.tmp_mib or half}m", **_SCRATCH}  # noqa: S108
    host: dict[str, Any] = {
        "init": True,  # reaps, and makes TERM reach a server that is no init
        "network_mode": look.network,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "read_only": look.read_only,
        "tmpfs": scratch,
        "ipc_mode": "private",
        "shm_size": (look.shm_mib or half) * MIB,
        "mem_limit": request.memory_mib * MIB,
        "memswap_limit": request.memory_mib * MIB,  # the same: no swap beside it
        "nano_cpus": request.cpus * 10**9,
        "pids_limit": look.processes,
        "mounts": [_home(wanted), *(_mount(bind) for bind in wanted.binds)],
        "group_add": [str(gid) for gid in wanted.groups],
        "log_config": LogConfig(type="json-file", config={"max-size": "5m", "max-file": "1"}),
        "restart_policy": {"Name": "no"},  # what ended stays ended; its GPUs are free
    }
    if look.publish:
        create["ports"] = [wanted.port]
        host["port_bindings"] = {wanted.port: (look.host_ip,)}
    if wanted.gpus and not look.virtual:
        # As `docker run --gpus device=…` asks; an empty driver is the engine's choice, which is NVIDIA's or CDI's.
        host["device_requests"] = [DeviceRequest(device_ids=list(wanted.gpus), capabilities=[["gpu"]])]
    return create, host


def labels(wanted: ContainerSpec) -> dict[str, str]:
    """Return the labels: the only book of who has what until when."""
    whose, request = wanted.whose, wanted.request
    return {
        SESSION: whose.session,
        "carme.prefix": whose.prefix,
        "carme.hub": whose.hub,
        "carme.user": whose.user,
        "carme.server": whose.server,
        "carme.profile": request.profile,
        "carme.gpus": ",".join(wanted.gpus),
        "carme.gpu-type": request.gpus.type,
        "carme.cpus": str(request.cpus),
        "carme.memory-mib": str(request.memory_mib),
        "carme.ends": str(wanted.ends),
        "carme.port": str(wanted.port),
    }


def environment(wanted: ContainerSpec) -> dict[str, str]:
    """Return what the inside sees; which GPUs there are is said even where there are none.

    An image may say ``NVIDIA_VISIBLE_DEVICES=all``, and an engine whose default runtime is NVIDIA's would obey.
    """
    own = {"NVIDIA_VISIBLE_DEVICES": ",".join(wanted.gpus) or "void"}
    if not wanted.gpus:
        own["CUDA_VISIBLE_DEVICES"] = ""
    elif wanted.look.virtual:
        own = {"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": ",".join(wanted.gpus)}
    return {**wanted.environ, **own, "CARME_SESSION": wanted.whose.session}


def _home(wanted: ContainerSpec) -> Mount:
    source, target = wanted.home
    return Mount(target, source, type="bind" if source.startswith("/") else "volume")


def _mount(bind: Bind) -> Mount:
    # A mount, unlike a "bind", is refused by the engine where its source is missing, instead of made for root.
    return Mount(bind.destination, bind.source, type="bind", read_only=bind.mode == "ro")
