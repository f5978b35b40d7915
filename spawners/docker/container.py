"""Renders the container of a session for the Docker engine: hardened, with its own GPUs only, and with labels.

The labels have everything that the hub must know of the container later. Pure functions.
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
#: Arguments of docker-py's ``create_container`` and ``create_host_config``.
Arguments = tuple[dict[str, Any], dict[str, Any]]
#: Writable places on a read-only root; pip and nvcc need a /tmp from which programs can run.
_SCRATCH = {
    "/run": "rw,noexec,nosuid,nodev,mode=755,size=16m",
    "/var/tmp": "rw,exec,nosuid,nodev,mode=1777,size=64m",  # noqa: S108
}
#: Keys that a site's own settings must not change: with them a container could have GPUs that no label names.
RESERVED_HOST = frozenset({"device_requests", "privileged", "devices", "device_cgroup_rules", "cap_add", "pid_mode"})
RESERVED_CREATE = frozenset({"labels", "host_config", "name", "environment", "user"})


@dataclass(frozen=True, slots=True)
class ContainerOwner:
    """The hub, user, server and session to which a container belongs."""

    prefix: str
    hub: str
    user: str
    server: str
    session: str


@dataclass(frozen=True, slots=True)
class ContainerDefaults:
    """Settings that are the same for every container of a site.

    Attributes:
        shm_mib, tmp_mib: 0 = half of the session's memory.
        read_only: only home, binds and scratch are writable.
        network: Docker network, "bridge" or "host". publish: publish the server's port on the host, at ``host_ip``.
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
    """The specification of one container.

    Attributes:
        image: a reference that the engine has. user: ``uid:gid``. groups: further gids.
        home: (Docker volume or host folder, path inside). binds: host folders of the site.
        gpus: ids of the host's GPUs. ends: UTC epoch seconds. port: where the server listens inside.
    """

    owner: ContainerOwner
    defaults: ContainerDefaults
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


def render(spec: ContainerSpec) -> Arguments:
    """Return the arguments of docker-py's ``create_container`` and of its ``create_host_config``."""
    defaults, request = spec.defaults, spec.request
    create: dict[str, Any] = {
        "image": spec.image,
        "name": spec.name,
        "entrypoint": [""],  # the command is run as it is, not by a script of the image
        "command": list(spec.command),
        "environment": environment(spec),
        "labels": labels(spec),
        "user": spec.user,
        "working_dir": spec.workdir,
        "stop_signal": "SIGTERM",
    }
    half = max(64, request.memory_mib // 2)
    scratch = {"/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={defaults.tmp_mib or half}m", **_SCRATCH}  # noqa: S108
    host: dict[str, Any] = {
        "init": True,  # reaps zombies, and forwards TERM to the server
        "network_mode": defaults.network,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "read_only": defaults.read_only,
        "tmpfs": scratch,
        "ipc_mode": "private",
        "shm_size": (defaults.shm_mib or half) * MIB,
        "mem_limit": request.memory_mib * MIB,
        "memswap_limit": request.memory_mib * MIB,  # equal to mem_limit: no swap
        "nano_cpus": request.cpus * 10**9,
        "pids_limit": defaults.processes,
        "mounts": [_home(spec), *(_mount(bind) for bind in spec.binds)],
        "group_add": [str(gid) for gid in spec.groups],
        "log_config": LogConfig(type="json-file", config={"max-size": "5m", "max-file": "1"}),
        "restart_policy": {"Name": "no"},  # a container that has ended has released its GPUs
    }
    if defaults.publish:
        create["ports"] = [spec.port]
        host["port_bindings"] = {spec.port: (defaults.host_ip,)}
    if spec.gpus and not defaults.virtual:
        # The same request as `docker run --gpus device=…`; without a driver the engine chooses NVIDIA's or CDI's.
        host["device_requests"] = [DeviceRequest(device_ids=list(spec.gpus), capabilities=[["gpu"]])]
    return create, host


def labels(spec: ContainerSpec) -> dict[str, str]:
    """Return the labels, the only record of which session has which resources until when."""
    owner, request = spec.owner, spec.request
    return {
        SESSION: owner.session,
        "carme.prefix": owner.prefix,
        "carme.hub": owner.hub,
        "carme.user": owner.user,
        "carme.server": owner.server,
        "carme.profile": request.profile,
        "carme.gpus": ",".join(spec.gpus),
        "carme.gpu-type": request.gpus.type,
        "carme.cpus": str(request.cpus),
        "carme.memory-mib": str(request.memory_mib),
        "carme.ends": str(spec.ends),
        "carme.port": str(spec.port),
    }


def environment(spec: ContainerSpec) -> dict[str, str]:
    """Return the environment of the container; the variables that name GPUs are set even without GPUs.

    An image may set ``NVIDIA_VISIBLE_DEVICES=all``, which an engine with NVIDIA's default runtime would follow.
    """
    own = {"NVIDIA_VISIBLE_DEVICES": ",".join(spec.gpus) or "void"}
    if not spec.gpus:
        own["CUDA_VISIBLE_DEVICES"] = ""
    elif spec.defaults.virtual:
        own = {"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": ",".join(spec.gpus)}
    return {**spec.environ, **own, "CARME_SESSION": spec.owner.session}


def _home(spec: ContainerSpec) -> Mount:
    source, target = spec.home
    return Mount(target, source, type="bind" if source.startswith("/") else "volume")


def _mount(bind: Bind) -> Mount:
    # If the source is missing, the engine refuses a mount; for a "bind" it would create the folder, owned by root.
    return Mount(bind.destination, bind.source, type="bind", read_only=bind.mode == "ro")
