"""GPU allocation on one Docker machine: its GPUs, which of them containers hold, and which a new container gets.

The allocation is stored in one place, the labels of the containers. So it survives everything that the containers
survive, and no second record can disagree with it. Pure functions, except for ``detect_gpus``.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from carme_hub.domain.cluster.jobs import Job, Phase
from carme_hub.domain.cluster.resources import Gpus, Node
from carme_hub.domain.sessions.availability import Cluster
from carme_hub.domain.sessions.session import Request
from carme_hub.errors import ConfigError, EngineUnreachable, Refused
from carme_hub.spawners.docker.engine import Container

NODE_NAME = "this machine"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9/:_-]{0,127}")
_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_GPU_LINE = re.compile(r"GPU \d+: (?P<name>.+) \(UUID: (?P<id>GPU-[0-9a-f-]+)\)")
_MIG_LINE = re.compile(r"\s+MIG (?P<name>\S+)\s+Device\s+\d+: \(UUID: (?P<id>MIG-[0-9A-Za-z/-]+)\)")
_MODEL = re.compile(r"(?:(RTX|GTX|TITAN) )?([A-Z]{0,2}[0-9]{1,4}[A-Z]{0,2}|[A-Z])(?: (Ti))?(?![A-Za-z0-9])")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, or one MIG device, that the engine can add to a container.

    Attributes:
        id: for ``--gpus device=``: a UUID, or the host's index.
        type: the name that profiles use.
    """

    id: str
    type: str


@dataclass(frozen=True, slots=True)
class Box:
    """The resources of the machine. CPUs and memory may be more than it has, if the site overcommits them."""

    cpus: int
    memory_mib: int
    gpus: tuple[Gpu, ...]

    def free(self, containers: Iterable[Container]) -> list[Gpu]:
        """Return the GPUs that no container holds."""
        held = {id for c in containers if not c.has_ended for id in c.gpus}
        return [gpu for gpu in self.gpus if gpu.id not in held]

    def choose(self, request: Request, containers: Sequence[Container]) -> tuple[str, ...]:
        """Return the ids of the GPUs for a request.

        Raises:
            Refused: not enough is free now; the message says what is free.
        """
        live = [c for c in containers if not c.has_ended]
        self._check_names(live)
        asked = request.gpus
        free = [gpu.id for gpu in self.free(live) if gpu.type == asked.type]
        total = sum(gpu.type == asked.type for gpu in self.gpus)
        if asked.count > len(free):
            raise Refused(
                f"{asked} cannot be allocated now: {len(free)} of {total} {asked.type} free. "
                "There is no queue here: take fewer, or try again when another session has ended.",
                reason="not-free",
            )
        cpus = self.cpus - sum(c.cpus for c in live)
        memory = self.memory_mib - sum(c.memory_mib for c in live)
        if request.cpus > cpus or request.memory_mib > memory:
            raise Refused(
                f"{_size(request.cpus, request.memory_mib)} of memory cannot be allocated now: "
                f"{_size(max(0, cpus), max(0, memory))} are free. "
                "Take less, or try again when another session has ended.",
                reason="not-free",
            )
        return tuple(free[: asked.count])

    def _check_names(self, live: Iterable[Container]) -> None:
        """Refuse to allocate while a container holds a GPU by the other kind of id: it could be the same GPU."""
        indexes = {gpu.id.isdecimal() for gpu in self.gpus}
        for container in live:
            for id in container.gpus:
                if indexes and id.isdecimal() not in indexes:
                    raise Refused(
                        f"GPU {id} was allocated by another kind of id than the hub uses now. An administrator must "
                        "end that server first.",
                        reason="gpu-names",
                    )

    def as_cluster(self, containers: Iterable[Container], *, seen: float, silent_since: float = 0.0) -> Cluster:
        """Return the machine for the form, as a cluster of one node without a queue."""
        live = [c for c in containers if not c.has_ended]
        types = {gpu.id: gpu.type for gpu in self.gpus}
        node = Node(
            name=NODE_NAME,
            state="mixed",
            usable=True,
            cpus=self.cpus,
            cpus_used=sum(c.cpus for c in live),
            memory_mib=self.memory_mib,
            memory_used_mib=sum(c.memory_mib for c in live),
            gpus=Counter(types.values()),
            gpus_used=Counter(types[id] for c in live for id in c.gpus if id in types),
        )
        jobs = [_job(number, container, types) for number, container in enumerate(live, 1)]
        return Cluster([node], jobs, seen=seen, silent_since=silent_since, queue=False)


def _size(cpus: int, memory_mib: int) -> str:
    return f"{cpus} CPU{'' if cpus == 1 else 's'} and {memory_mib // 1024} GiB"


def _job(number: int, container: Container, types: Mapping[str, str]) -> Job:
    given = [types[id] for id in container.gpus if id in types]
    return Job(
        id=number,
        name=container.session,
        user=container.server[0],
        state="RUNNING",
        phase=Phase.ACTIVE,
        nodes=(NODE_NAME,),
        end=container.ends,
        gpus=Gpus(given[0], len(given)) if given else Gpus(),
    )


def conflict(own: str, containers: Iterable[Container]) -> tuple[str, ...]:
    """Return the GPUs of one container that another container holds too."""
    containers = tuple(containers)
    mine = {id for c in containers if c.id == own for id in c.gpus}
    if not any(c.id == own for c in containers):
        raise EngineUnreachable("the Docker engine does not list the container that it has just created")
    return tuple(sorted({id for c in containers if c.id != own and not c.has_ended for id in c.gpus} & mine))


def parse_gpus(entries: Sequence[Mapping[str, object]]) -> tuple[Gpu, ...]:
    """Return the GPUs that an administrator lists as ``{"id": …, "type": …}``.

    Raises:
        ConfigError: an entry is not valid; the message names it.
    """
    found = []
    for entry in entries:
        id, type = str(entry.get("id", "")), entry.get("type", "")
        if set(entry) != {"id", "type"} or not _ID.fullmatch(id) or not isinstance(type, str):
            raise ConfigError(f"gpus: {entry!r} must be like {{'id': 'GPU-8f3c…', 'type': 'a100'}}, or with an index")
        if not _TYPE.fullmatch(type):
            raise ConfigError(f"gpus: {type!r} is not a name for a type of GPU")
        found.append(Gpu(id, type))
    if len({gpu.id for gpu in found}) < len(found):
        raise ConfigError("gpus lists an id twice; each GPU can be allocated to one server only")
    if len({gpu.id.isdecimal() for gpu in found}) > 1:
        raise ConfigError("gpus mixes UUIDs and indexes, which could name one GPU twice; take UUIDs (nvidia-smi -L)")
    return tuple(found)


def check_types(box_gpus: Sequence[Gpu], wanted: dict[str, set[str]]) -> None:
    """Refuse profiles for GPU types that the machine does not have.

    Args:
        wanted: slug of each profile to the types it offers.

    Raises:
        ConfigError: the message names the profile, the type, and the machine's types.
    """
    there = {gpu.type for gpu in box_gpus}
    for slug, types in wanted.items():
        for type in sorted(types - there):
            raise ConfigError(
                f"profile_list: {slug} offers {type}, and this machine has {', '.join(sorted(there)) or 'no GPU'}; "
                "c.CarmeDockerSpawner.gpus can name them otherwise"
            )


def detect_gpus(command: str = "nvidia-smi", limit: float = 30.0) -> tuple[Gpu, ...]:
    """Return the GPUs that the driver lists, or the MIG devices of a partitioned GPU; none without a driver.

    Raises:
        ConfigError: the driver is installed and does not answer as expected.
    """
    try:
        done = subprocess.run([command, "-L"], capture_output=True, text=True, timeout=limit, check=False)
    except FileNotFoundError:
        return ()
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"the GPUs cannot be listed by {command} ({error}); set c.CarmeDockerSpawner.gpus") from error
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())[:200]
        raise ConfigError(f"{command} -L failed ({said}); repair the driver or set c.CarmeDockerSpawner.gpus")
    return read_list(done.stdout)


def read_list(text: str) -> tuple[Gpu, ...]:
    """Parse the output of ``nvidia-smi -L``."""
    found: list[list[Gpu]] = []
    for line in text.splitlines():
        if match := _GPU_LINE.match(line):
            found.append([Gpu(match["id"], type_of(match["name"]))])
        elif (match := _MIG_LINE.match(line)) and found:
            found[-1].append(Gpu(match["id"], f"{found[-1][0].type}_{match['name']}"))
        elif line.strip():
            raise ConfigError(f"nvidia-smi -L says {line.strip()[:80]!r}; set c.CarmeDockerSpawner.gpus")
    return tuple(gpu for group in found for gpu in (group[1:] or group))


def type_of(name: str) -> str:
    """Return a short type from a product's name: ``NVIDIA A100-SXM4-40GB`` is a100, ``… GeForce RTX 3090`` rtx3090."""
    words = re.sub(r"\b(NVIDIA|Tesla|Quadro|GeForce|Graphics Device)\b", " ", name)
    words = " ".join(words.split())
    match = _MODEL.match(words)
    if match is None or match[0] == "":
        return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60] or "gpu"
    family, model, more = match.groups()
    if family and model[0].isalpha() and len(model) > 1:
        family = ""  # an RTX A6000 is commonly called A6000
    return f"{family or ''}{model}{more or ''}".lower()
