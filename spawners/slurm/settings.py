"""The traits of SlurmContainerSpawner, their checks, and the values made from them."""

from __future__ import annotations

import pwd
from dataclasses import replace
from typing import Any

from traitlets import Bool, Callable, Dict, Enum, Float, Integer, List, TraitError, Tuple, Unicode, validate

from carme_hub.booking.settings import CarmeReservations
from carme_hub.containers.image_environ import DEFAULT_NAMES
from carme_hub.containers.images import BACKENDS
from carme_hub.containers.registry import runtime
from carme_hub.domain.sessions.profile_list import parse_profiles
from carme_hub.errors import ConfigError
from carme_hub.sessions.profile_fields import profile_field
from carme_hub.spawners.apps.settings import CONFIG, CarmeApps
from carme_hub.spawners.form.offers import OfferSettings
from carme_hub.spawners.job_script import Owner, Server, Site, session_folder
from carme_hub.spawners.slurm.batchspawner_names import SlurmSpawner, check_names, profile_from_names
from carme_hub.spawners.staging.settings import CarmeStaging


class SessionSettings(OfferSettings, SlurmSpawner):
    """The administrator's settings for all sessions."""

    _session_id = ""
    _usual_start_timeout: float | None = None
    # Declared by JupyterHub's Spawner.
    start_timeout: Any

    container_runtime = Unicode(
        "bubblewrap",
        help="""The container runtime: bubblewrap, charliecloud, apptainer, enroot, pyxis, podman, or the entry point of
        an installed package. See docs/reference/containers.md for the features of each, and
        docs/howto/add-a-container-runtime.md for the latter. Example: ``"apptainer"``.""",
    ).tag(config=True)

    podman_engine = Enum(
        ["crun", "runc"],
        "crun",
        help="""The OCI runtime of Podman, if ``container_runtime`` is "podman". The default, crun, keeps a user's
        further groups and all processes in the job's cgroup; "runc" is for nodes with a hybrid of cgroup v1 and v2,
        on which crun refuses to run. Example: ``"runc"``.""",
    ).tag(config=True)

    podman_device = Unicode(
        "nvidia.com/gpu=all",
        help="""CDI name of the devices that Podman adds to a session with GPUs; the job's cgroup decides which of
        them can be opened. Each node needs the CDI file (``nvidia-ctk cdi generate``). Empty: none. Example:
        ``"amd.com/gpu=all"``.""",
    ).tag(config=True)

    container_bind_roots = List(
        Unicode(),
        help="""Folders inside which the source of a bind must be after links are resolved on the node. The default,
        empty, allows the sources of ``container_binds`` themselves. Example: ``["/scratch", "/data"]``.""",
    ).tag(config=True)

    image_environment = List(
        Unicode(),
        default_value=list(DEFAULT_NAMES),
        help="""Names, with ``*``, of the variables that an image sets and sessions in it get; its PATH always counts.
        The default names those of CUDA, MPI, conda, Java, Julia and R that programs need. What controls the loader, an
        interpreter, the hub or Slurm is never taken. Example: ``["CUDA_*", "MY_PROGRAM_HOME"]``.""",
    ).tag(config=True)

    slurm_extra = Dict(
        value_trait=Unicode(),
        key_trait=Unicode(),
        help="""Further options of sbatch by their long names, for every session. Example: ``{"constraint": "gpu80"}``.
        Users cannot set these.""",
    ).tag(config=True)

    port_range = Tuple(
        Integer(),
        Integer(),
        default_value=(32768, 60999),
        help="Lowest and highest port a server may take on a compute node. Example: ``(40000, 40999)``.",
    ).tag(config=True)

    stop_timeout = Float(
        30.0,
        min=1,
        help="""Seconds that Stop waits for the end of the job. After that the hub continues to cancel it by itself,
        also after restarts and outages, until the job has ended.""",
    ).tag(config=True)

    node_address = Callable(
        None,
        allow_none=True,
        help="""Callable that takes a node's name and returns the address to which the hub connects. The default, None,
        uses Slurm's NodeAddr. Example: ``lambda node: f"{node}.ib.example.org"``.""",
    ).tag(config=True)

    max_companions = Integer(
        8,
        min=0,
        help="""Companions that one session may have open at once: further jobs with more nodes for training. A run
        with a fixed number of ranks needs one for all of them, an elastic run one for each further rank for which the
        session has no GPUs. Each has a hold and charges like a session, and the rules on GPU time count it as one.
        0: none. Example: ``2``.""",
    ).tag(config=True)

    companion_nodes = Integer(
        16, min=1, help="Most nodes of one companion. The profile's limits apply to each of them. Example: ``4``."
    ).tag(config=True)

    max_batch_jobs = Integer(
        16,
        min=0,
        help="""Batch jobs (``%%distributed --submit``) that one user may have waiting or running at once. Each has a
        hold and charges like a session, and the rules on GPU time count it as one. ``companion_nodes`` limits its
        nodes, and the profile its time. 0: none. Example: ``4``.""",
    ).tag(config=True)

    keep_memory = Bool(
        True,
        help="""Whether the largest process of a job is killed that has more memory than it asked for, on nodes where no
        cgroup confines it (docs/reference/containers.md). With ``task/cgroup`` and ``ConstrainRAMSpace=yes`` the kernel
        does it, and this changes nothing. Example: ``False``, where the memory of a profile is not a limit.""",
    ).tag(config=True)

    @validate("port_range")
    def _ports(self, proposal: Any) -> tuple[int, int]:
        low, high = proposal["value"]
        if not 1024 <= low <= high <= 65535:
            raise TraitError("port_range: two ports from 1024 to 65535, the lower one first")
        return low, high

    # -- values made from the traits ----------------------------------------------------------------------------------

    def check_settings(self) -> None:
        """Check everything that can be checked without a user.

        Raises:
            ConfigError: naming the setting and what it should be.
        """
        check_names(self)
        self.site()
        CarmeApps(parent=self).files()
        if not self.site_images():
            raise ConfigError("c.SlurmContainerSpawner.images is empty: name at least one container image")
        if not callable(self.profile_list):
            parse_profiles(self.profile_list or self.fallback_profiles(), profile_field(self))

    async def _choose(self, user_options: dict[str, Any]) -> None:
        """Check the options; a start that copies data to its node first may take as much longer."""
        await super()._choose(user_options)
        if self._usual_start_timeout is None:
            self._usual_start_timeout = float(self.start_timeout)
        copies = self._request is not None and bool(self._request.stage.get("in"))
        more = 60 * CarmeStaging(parent=self).start_minutes if copies else 0
        self.start_timeout = int(self._usual_start_timeout + more)

    def fallback_profiles(self) -> list[dict[str, object]]:
        """Return the one profile that batchspawner's names describe."""
        return [profile_from_names(self)]

    def home_of(self, entry: pwd.struct_passwd) -> str:
        """Return a system user's home folder, by ``req_homedir`` if that is set."""
        return self.req_homedir.format(username=entry.pw_name) if self.req_homedir else entry.pw_dir

    def site(self, home: str = "") -> Site:
        """Return the settings that are the same for every container of a user with this home folder."""
        binds, staging = self.site_binds(), CarmeStaging(parent=self)
        roots = tuple(self.container_bind_roots) or tuple(b.source for b in binds)
        return Site(
            runtime=runtime(
                self.container_runtime,
                podman_engine=self.podman_engine,
                podman_device=self.podman_device,
                parent=self,
            ),
            binds=binds,
            bind_roots=roots,
            environ={**(CarmeApps(parent=self).environ(home) if home else {}), **self.container_environment},
            image_environ=tuple(self.image_environment),
            extra=dict(self.slurm_extra),
            root=self.container_root,
            tmp_mib=self.container_tmp_mib,
            grace=self.stop_grace,
            licenses=CarmeReservations(parent=self).counted_by(),
            virtual=self.virtual,
            keeps_memory=self.keep_memory,
            scratch=staging.root,
            copies={"parallel": staging.parallel, "rclone": staging.rclone},
            images={name: found for name in BACKENDS if (found := self._images_with(name))},
        )

    def _images_with(self, backend: str) -> list[str]:
        return [image.name for image in self.site_images() if backend in image.provides]

    def with_apps(self, server: Server, owner: Owner) -> Server:
        """Return the server with the apps of its session, whose configuration is in the session folder."""
        argv, environ, folder = server.argv, dict(server.environ), session_folder(owner, self._session_id)
        before = environ.get("JUPYTER_CONFIG_PATH") or self.container_environment.get("JUPYTER_CONFIG_PATH")
        environ["JUPYTER_CONFIG_PATH"] = f"{folder}:{before}" if before else folder
        if self.disable_user_config:  # the server then ignores configuration in the home folder
            argv = (*argv, f"--config={folder}/{CONFIG}")
        return replace(server, argv=argv, environ=environ, files={**server.files, **CarmeApps(parent=self).files()})
