"""The traits of CarmeDockerSpawner besides those of ``OfferSettings``, their checks, and the values made from them."""

from __future__ import annotations

import inspect
import re
from typing import Any

from traitlets import Bool, Dict, Enum, Float, Integer, List, Unicode
from traitlets.config import LoggingConfigurable

from carme_hub.containers.check import check_bind, check_environ, check_image
from carme_hub.domain.sessions.profile import Profile
from carme_hub.domain.sessions.profile_list import parse_profiles
from carme_hub.errors import ConfigError, ContainerError
from carme_hub.sessions.profile_fields import profile_field
from carme_hub.spawners.docker.container import RESERVED_CREATE, RESERVED_HOST, Arguments
from carme_hub.spawners.docker.gpu_allocation import Gpu, detect_gpus, parse_gpus

#: Settings of DockerSpawner that are not used, and what to set instead.
REPLACED = {
    "allowed_images": "c.CarmeDockerSpawner.images",
    "image": "c.CarmeDockerSpawner.images",
    "mem_limit": "memory_gib of a profile",
    "mem_guarantee": "memory_gib of a profile",
    "cpu_limit": "cpus of a profile",
    "cpu_guarantee": "cpus of a profile",
    "remove": "nothing: containers end with their sessions, homes stay",
    "use_internal_hostname": "nothing: the hub reaches containers by address",
    "post_start_cmd": "nothing: let the image do it",
}


class DockerSettings(LoggingConfigurable):
    """The settings of a machine with Docker."""

    images = List(
        Dict(),
        help="""Images to choose from, the default image first. ``path`` is a reference that this machine's engine has,
        and ``format`` is always ref. No other image can be started. No default: a site needs one. Example::

            c.CarmeDockerSpawner.images = [
                {"name": "default", "path": "registry.example.org/lab/pytorch:12", "format": "ref",
                 "description": "PyTorch"},
            ]
        """,
    ).tag(config=True)

    gpus = List(
        Dict(),
        help="""The GPUs that the hub allocates: for each its ``id`` for ``docker run --gpus device=`` (a UUID, or the
        host's index), and its ``type``, as in profiles. The default, empty, uses the output of ``nvidia-smi -L``,
        including MIG devices. The hub logs the list at its start. Example::

            c.CarmeDockerSpawner.gpus = [{"id": "GPU-8f3c…", "type": "a6000"}, {"id": "GPU-77d0…", "type": "a6000"}]
        """,
    ).tag(config=True)

    system_users = Bool(
        False,
        help="""Run each container as the system user of the same name, with that uid, gid and further groups from
        ``minimum_uid`` on, and with that user's home folder. The default is ``container_user`` and a volume.""",
    ).tag(config=True)

    container_user = Unicode(
        "1000:100",
        help="""``uid:gid`` inside the containers, unless ``system_users``. The default is that of Jupyter's own images;
        the image's home folder must be theirs. Root is refused. Example: ``"1000:1000"``.""",
    ).tag(config=True)

    container_home = Unicode(
        "/home/jovyan", help="Home folder inside the containers, unless ``system_users``. Example: ``/home/user``."
    ).tag(config=True)

    home_volume = Unicode(
        "{prefix}-home-{username}",
        help="""Name of the Docker volume that is a user's home, unless ``system_users``. It stays when sessions end.
        The names in braces are those of ``DockerSpawner.name_template``.""",
    ).tag(config=True)

    container_root = Enum(
        ("ro", "layer"),
        default_value="ro",
        help="""Writable files besides home, binds, /tmp and /var/tmp. ``ro``, the default: none. ``layer``: all that
        file permissions allow, in a layer that is removed with the session.""",
    ).tag(config=True)

    container_tmp_mib = Integer(
        0,
        min=0,
        help="""Size of the container's own /tmp in MiB. The default, 0, is half of the session's memory, of which it
        is a part.""",
    ).tag(config=True)

    shm_mib = Integer(
        0,
        min=0,
        help="""Size of /dev/shm in MiB, which data loaders and NCCL need. The default, 0, is half of the session's
        memory, of which it is a part.""",
    ).tag(config=True)

    processes = Integer(
        4096, min=64, help="The most processes and threads that one container may have. The default stops fork bombs."
    ).tag(config=True)

    cpu_overcommit = Float(
        1.0,
        min=0.1,
        help="""How many times the machine's CPUs may be allocated. The default, 1, allocates each once; with 4, four
        sessions share them, each up to its own limit.""",
    ).tag(config=True)

    memory_overcommit = Float(
        1.0,
        min=0.1,
        help="""How many times the machine's memory may be allocated. With more than the default, 1, the kernel may
        kill sessions when all use their limits; less leaves memory to other programs. Example: ``0.9``.""",
    ).tag(config=True)

    look_interval = Float(
        5.0,
        min=0.5,
        help="Seconds between two queries to the engine, each for all sessions. Time limits have this precision.",
    ).tag(config=True)

    def check_settings(self) -> None:
        """Check everything that can be checked without a user and without the engine.

        Raises:
            ConfigError: naming the setting and what it should be.
        """
        self._check_replaced()
        self.container_ids()
        parse_gpus(self.gpus)
        images = self.site_images()
        if not images:
            raise ConfigError("c.CarmeDockerSpawner.images is empty: name at least one image of the Docker engine")
        try:
            for image in images:
                check_image(image)
            for bind in self.site_binds():
                check_bind(bind)
            check_environ(self.container_environment)
        except ContainerError as error:
            raise ConfigError(f"c.CarmeDockerSpawner: {error}") from error
        for image in images:
            if image.format != "ref":
                raise ConfigError(f"images: the format of {image.name!r} must be ref, with an image of the engine")
        if not self.profile_list:
            raise ConfigError("c.CarmeDockerSpawner.profile_list is empty: offer at least one profile")
        if not callable(self.profile_list):
            for profile in parse_profiles(self.profile_list, profile_field(self)):
                check_profile(profile)
        if self.config.JupyterHub.get("internal_ssl", False):
            raise ConfigError("c.JupyterHub.internal_ssl: set it to False; servers are reached on this machine alone")

    def _check_replaced(self) -> None:
        for cls in type(self).__mro__:
            for name in self.config.get(cls.__name__, {}):
                if name in REPLACED:
                    raise ConfigError(f"c.{cls.__name__}.{name} is not used here; set instead: {REPLACED[name]}")

    def container_ids(self) -> tuple[int, int]:
        """Return uid and gid inside the containers, without ``system_users``.

        Raises:
            ConfigError: they are not numbers, or root's.
        """
        match = re.fullmatch(r"([1-9]\d{0,9}):([1-9]\d{0,9})", self.container_user)
        if match is None:
            raise ConfigError(f"container_user is {self.container_user!r}: write uid:gid in numbers, neither of them 0")
        return int(match[1]), int(match[2])

    def box_gpus(self) -> tuple[Gpu, ...]:
        """Return the GPUs to allocate; blocking, since it may query the driver."""
        return parse_gpus(self.gpus) or detect_gpus()


def check_profile(profile: Profile) -> None:
    """Refuse a profile with keys that only Slurm understands: ``accounts`` would otherwise exclude nobody.

    Raises:
        ConfigError: the message names the keys.
    """
    given = {
        "partition": profile.partition,
        "qos": profile.qos,
        "reservation": profile.reservation or profile.reservations,
        "accounts": profile.accounts,
    }
    keys = {key for key, value in given.items() if value}
    for fixed in (profile.override, *(choice.override for option in profile.options for choice in option.choices)):
        keys |= fixed.keys() & {"partition", "qos", "reservation", "account"}
    if keys:
        raise ConfigError(
            f"profile_list ({profile.slug}): {', '.join(sorted(keys))} work with Slurm only; "
            "without Slurm, use groups to offer a profile to some users only"
        )


async def with_site_settings(spawner: Any, create: dict[str, Any], host: dict[str, Any]) -> Arguments:
    """Return the arguments for the engine with the additions of DockerSpawner's own settings.

    Raises:
        ConfigError: an addition would change what the hub's GPU allocation depends on.
    """
    host["binds"] = spawner.volume_binds
    host["mounts"] = [*host["mounts"], *spawner.mount_binds]
    create["volumes"] = spawner.volume_mount_points
    for name, target, reserved in (
        ("extra_create_kwargs", create, RESERVED_CREATE),
        ("extra_host_config", host, RESERVED_HOST),
    ):
        value = getattr(spawner, name)
        value = value(spawner) if callable(value) else value
        extra = spawner._render_templates(await value if inspect.isawaitable(value) else value)
        if wrong := sorted(extra.keys() & reserved):
            raise ConfigError(f"c.CarmeDockerSpawner.{name}: {', '.join(wrong)} cannot be set: the hub sets it")
        target.update(extra)
    return create, host
