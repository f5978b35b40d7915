"""batchspawner's setting names for the Slurm spawner: they keep working, or fail at start-up and name the new setting.

The two classes have batchspawner's names, so that ``c.SlurmSpawner.req_partition`` and
``c.BatchSpawnerBase.req_runtime`` in an old config still apply after ``spawner_class`` was changed. batchspawner itself
is never imported: its import registers a start-up callback that trusts its input.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jupyterhub.spawner import Spawner
from traitlets import Any as AnyTrait
from traitlets import Unicode

from carme_hub.errors import ConfigError

#: Names that keep their meaning, and where their value is in a profile. This table and the next are the only list of
#: batchspawner's names: the hub, `carme-hub convert` and docs/reference/converted-settings.md use them.
KEPT = {
    "req_partition": "`partition` of the profile",
    "req_account": "`accounts` of the profile",
    "req_qos": "`qos` of the profile",
    "req_reservation": "`reservation` of the profile",
    "req_runtime": "`time_minutes` of the profile: the upper limit and the default",
    "req_memory": "`memory_gib` of the profile: the upper limit and the default",
    "req_nprocs": "`cpus` of the profile: the upper limit and the default",
    "req_gres": "`gpus` of the profile, with their type: `gpu:a100:2`. Without one it is refused: limits are by type",
    "req_ngpus": "only together with `req_gres`",
    "req_nodes": "only 1: further nodes are for training jobs",
    "req_homedir": "the home folder, with {username}",
}
#: Names that cannot keep their meaning, and what to set instead.
REPLACED = {
    "batch_script": "the batch script is constant; set images, binds and c.SlurmContainerSpawner.slurm_extra",
    "batch_submit_cmd": "c.CarmeSlurm.submit_via and c.CarmeSlurm.slurm_prefix",
    "batch_query_cmd": "c.CarmeSlurm.slurm_prefix (one query for all users, made by us)",
    "batch_cancel_cmd": "c.CarmeSlurm.slurm_prefix",
    "exec_prefix": "c.CarmeSlurm.submit_via = 'sudo' and c.CarmeSlurm.submit_command",
    "connect_to_job_cmd": "nothing: the hub connects to the node itself",
    "req_prologue": "c.SlurmContainerSpawner.container_environment, or a wrapper in the image",
    "req_epilogue": "a Slurm epilog",
    "req_options": "c.SlurmContainerSpawner.slurm_extra, e.g. {'constraint': 'gpu80'}",
    "req_host": "c.CarmeSlurm.slurm_conf",
    "req_cluster": "c.CarmeSlurm.cluster and c.CarmeSlurm.slurm_conf",
    "req_srun": "nothing: the container is started by the batch script itself",
    "req_keepvars": "c.SlurmContainerSpawner.container_environment",
    "req_keepvars_extra": "c.SlurmContainerSpawner.container_environment",
    "req_queue": "c.SlurmContainerSpawner.req_partition",
    "req_username": "nothing: jobs run as the user who logged in",
    "state_pending_re": "nothing: job states are understood without it",
    "state_running_re": "nothing: job states are understood without it",
    "state_exechost_re": "nothing: node names are understood without it",
    "state_exechost_exp": "c.SlurmContainerSpawner.node_address",
    "state_unknown_re": "nothing: whatever is not understood is unknown, and keeps the session",
    "job_id_re": "nothing: job ids are understood without it",
    "startup_poll_interval": "c.CarmeSlurm.fast_interval",
}
#: Names that mean nothing here and harm nothing: the hub ignores them.
IGNORED = {
    "batchspawner_singleuser_cmd": "nothing: jupyterhub-singleuser in the image is enough",
    "admin_environment": "nothing: commands of Slurm get the variables that they need, and no token",
}


def _kept(what: str, example: str) -> Any:
    help = f"""batchspawner's name for {what}; used for the one profile offered while ``profile_list`` is empty.
    The default "" means that our own default is taken. Example: ``c.SlurmContainerSpawner.{example}``."""
    return Unicode("", help=help).tag(config=True)


class BatchSpawnerBase(Spawner):
    """Takes ``c.BatchSpawnerBase.*`` of an old config. Not for use by itself."""

    req_partition = _kept("the partition", "req_partition = 'gpu'")
    req_account = _kept("the account", "req_account = 'physics'")
    req_qos = _kept("the QOS", "req_qos = 'normal'")
    req_reservation = _kept("the reservation", "req_reservation = 'course'")
    req_runtime = _kept("the time limit, as Slurm writes it", "req_runtime = '8:00:00'")
    req_memory = _kept("the memory, in MiB or with K, M, G or T", "req_memory = '4G'")
    req_nprocs = _kept("the number of CPUs", "req_nprocs = '4'")
    req_ngpus = _kept("the number of GPUs; their type is set in ``req_gres``", "req_ngpus = '1'")
    req_gres = _kept("the GPUs, with their type", "req_gres = 'gpu:a100:1'")
    req_nodes = _kept("the number of nodes; only 1 is possible", "req_nodes = '1'")
    req_homedir = _kept("the home folder, with {username}", "req_homedir = '/home/{username}'")

    async def start(self) -> Any:
        """Refuse: only a subclass can start servers."""
        raise NotImplementedError

    async def stop(self, now: bool = False) -> None:
        """Refuse: only a subclass can stop servers."""
        raise NotImplementedError

    async def poll(self) -> int | None:
        """Refuse: only a subclass can poll servers."""
        raise NotImplementedError


for _name, _instead in REPLACED.items():
    _trait = AnyTrait(None, allow_none=True, help=f"batchspawner's name. Not used here; set instead: {_instead}.").tag(
        config=True, replaced=True
    )
    setattr(BatchSpawnerBase, _name, _trait)
    _trait.class_init(BatchSpawnerBase, _name)
BatchSpawnerBase.setup_class(BatchSpawnerBase.__dict__)


class SlurmSpawner(BatchSpawnerBase):
    """Takes ``c.SlurmSpawner.*`` of an old config. Not for use by itself."""


def check_names(spawner: BatchSpawnerBase) -> None:
    """Refuse names of batchspawner that cannot keep their meaning.

    Raises:
        ConfigError: the message names each such setting, and what to set instead.
    """
    wrong = [
        f"{name} (set instead: {instead})" for name, instead in REPLACED.items() if getattr(spawner, name) is not None
    ]
    if spawner.req_nodes not in ("", "1"):
        wrong.append("req_nodes (a notebook runs on one node; further nodes are for training jobs)")
    if spawner.req_ngpus not in ("", "0") and not spawner.req_gres:
        wrong.append("req_ngpus without a type (set instead: req_gres = 'gpu:TYPE:COUNT', limits are kept by type)")
    if wrong:
        raise ConfigError("These settings of batchspawner are not used by carme-slurm: " + "; ".join(wrong))


def profile_from_names(spawner: BatchSpawnerBase) -> dict[str, object]:
    """Return the one profile that batchspawner's names describe, in the shape of ``profile_list``."""
    return profile_of({name: getattr(spawner, name) for name in KEPT})


def profile_of(names: Mapping[str, str]) -> dict[str, object]:
    """Return the profile that values of ``KEPT`` describe, in the shape of ``profile_list``; "" is as if not set.

    Raises:
        ConfigError: a value is not as Slurm writes it, or GPUs have no type.
    """
    given = {name: value for name, value in names.items() if value}
    profile: dict[str, object] = {
        "slug": "default",
        "display_name": "Notebook",
        "description": "A notebook on a compute node.",
        "default": True,
    }
    for name in ("partition", "qos", "reservation"):
        if f"req_{name}" in given:
            profile[name] = given[f"req_{name}"]
    if "req_account" in given:
        profile["accounts"] = [given["req_account"]]
    if "req_runtime" in given:
        minutes = minutes_of(given["req_runtime"])
        profile["time_minutes"] = {"min": min(5, minutes), "max": minutes, "default": minutes}
    if "req_memory" in given:
        gib = gib_of(given["req_memory"])
        profile["memory_gib"] = {"min": 1, "max": gib, "default": gib}
    if "req_nprocs" in given:
        cpus = _number("req_nprocs", given["req_nprocs"])
        profile["cpus"] = {"min": 1, "max": cpus, "default": cpus}
    if "req_gres" in given:
        found = re.fullmatch(r"gpu:([\w.-]+):(\d+)", given["req_gres"])
        if not found:
            raise ConfigError(f"req_gres is {given['req_gres']!r}: write gpu:TYPE:COUNT, limits are kept by type")
        count = int(found[2])
        profile["gpus"] = {"types": [found[1]], "min": count, "max": count, "default": count}
    return profile


def _number(name: str, value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise ConfigError(f"{name} is {value!r}: write a whole number")
    return int(value)


def minutes_of(text: str) -> int:
    """Parse a time limit in Slurm's formats (sbatch(1), ``--time``); return minutes, rounded up."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text.strip())
    if not match:
        raise ConfigError(f"req_runtime is {text!r}: write it as Slurm does, for example 8:00:00")
    days, a, b, c = match.groups()
    first, second, third = int(a), int(b or 0), int(c or 0)
    if days is not None:  # days-hours[:minutes[:seconds]]
        seconds = ((int(days) * 24 + first) * 60 + second) * 60 + third
    elif c is not None:  # hours:minutes:seconds
        seconds = (first * 60 + second) * 60 + third
    else:  # minutes[:seconds]
        seconds = first * 60 + second
    return max(1, -(-seconds // 60))


def gib_of(text: str) -> int:
    """Parse a memory size in Slurm's formats (sbatch(1), ``--mem``); return GiB, rounded up."""
    match = re.fullmatch(r"(\d+)\s*([KMGT]?)B?", text.strip(), re.IGNORECASE)
    if not match:
        raise ConfigError(f"req_memory is {text!r}: write it as Slurm does, for example 4G")
    mib = int(match[1]) * {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024 * 1024}[match[2].upper()]
    return max(1, int(-(-mib // 1024)))
