"""What was found out about a site, and how it is read from Slurm's answers. Pure; ``find`` asks."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from carme_hub.domain.cluster.resources import Node
from carme_hub.domain.cluster.tres import minutes_of

_ALL = frozenset({"", "ALL", "N/A", "(null)", "NONE"})
_KEY = re.compile(r"(?:^|,)\s*jwt_key=([^,\s]+)")


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition, with the largest of each kind that one of its nodes has.

    Attributes:
        max_minutes: the longest job, 0 = no limit. memory_mib: in MiB. gpus: GPU type to the most on one node.
        accounts, groups, qos: who may use it; () = everybody.
        reserved: not for everybody's jobs: hidden, for root only, or for reservations only.
    """

    name: str
    default: bool = False
    max_minutes: int = 0
    nodes: int = 0
    cpus: int = 0
    memory_mib: int = 0
    gpus: Mapping[str, int] = field(default_factory=dict)
    accounts: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    qos: tuple[str, ...] = ()
    reserved: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """A site, as far as it can be seen from the hub's machine.

    Attributes:
        sbatch: absolute path. slurm_conf: the file that Slurm's commands read, "" = Slurm does not name one.
        jwt_key: the key with which Slurm's tokens are signed, "" = Slurm accepts no tokens (AuthAltTypes).
        has_jwt_key: whether that file is on this machine. sudo: its path, "" = it is not installed.
        addresses: those of this machine from which compute nodes are reached, the most frequent first.
        host: this machine's full name. programs: of those that setup looks for, the ones that are on this machine.
        runtimes: partition to the container runtimes on one of its nodes; partitions that were not looked at lack.
        image: settings of the image that its own description has, where this machine has it too.
        accounts, qos: None = Slurm's accounting did not answer.
        admin_level: of the hub's user in Slurm, in its words, "" = it has none; None as above.
        hub_group: the group of the hub's user.
        local_passwords: whether the passwords of users are in this machine's /etc/shadow.
        users, groups: those that this machine knows; members: (user, group); None = they are not looked up.
        ports, folders: those of other hubs on this machine, and what has them, in words.
        notes: what could not be found out, in sentences.
    """

    cluster: str = ""
    release: str = ""
    partitions: tuple[Partition, ...] = ()
    accounts: tuple[str, ...] | None = ()
    qos: tuple[str, ...] | None = ()
    sbatch: str = "/usr/bin/sbatch"
    slurm_conf: str = ""
    jwt_key: str = ""
    has_jwt_key: bool = False
    sudo: str = ""
    addresses: tuple[str, ...] = ()
    host: str = ""
    programs: frozenset[str] = frozenset()
    runtimes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    image: Mapping[str, object] = field(default_factory=dict)
    admin_level: str | None = ""
    hub_group: str = ""
    local_passwords: bool = False
    users: Container[str] | None = None
    groups: Container[str] | None = None
    members: Container[tuple[str, str]] | None = None
    ports: Mapping[int, str] = field(default_factory=dict)
    folders: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def partition(self, name: str) -> Partition | None:
        """Return the partition of that name, None if Slurm has none."""
        return next((each for each in self.partitions if each.name == name), None)

    @property
    def common_runtimes(self) -> frozenset[str]:
        """The runtimes that all partitions have which were looked at."""
        found = list(self.runtimes.values())
        return frozenset.intersection(*found) if found else frozenset()


def jwt_key(config: Mapping[str, str]) -> str:
    """Return the key of Slurm's tokens by ``scontrol show config``, "" where it accepts none."""
    if "auth/jwt" not in config.get("AuthAltTypes", ""):
        return ""
    match = _KEY.search(config.get("AuthAltParameters", ""))
    return match[1] if match else ""


def partitions(text: str, nodes: Iterable[Node]) -> tuple[Partition, ...]:
    """Return the partitions of ``scontrol show partition --oneliner``, in Slurm's order, with the sizes of their nodes.

    Raises:
        ValueError: a line that is no partition.
    """
    members: dict[str, list[Node]] = {}
    for node in nodes:
        for name in node.partitions:
            members.setdefault(name, []).append(node)
    return tuple(_partition(line, members) for line in text.splitlines() if line.strip())


def _partition(line: str, members: Mapping[str, Sequence[Node]]) -> Partition:
    words = dict(word.partition("=")[::2] for word in line.split() if "=" in word)
    name = words.get("PartitionName", "")
    if not name:
        raise ValueError(f"not a partition: {line[:80]!r}")
    nodes = members.get(name, ())
    gpus: dict[str, int] = {}
    for node in nodes:
        for kind, count in node.gpus.items():
            gpus[kind] = max(count, gpus.get(kind, 0))
    return Partition(
        name=name,
        default=words.get("Default") == "YES",
        max_minutes=minutes_of(words.get("MaxTime", "")),
        nodes=len(nodes),
        cpus=max((node.cpus for node in nodes), default=0),
        memory_mib=max((node.memory_mib for node in nodes), default=0),
        gpus=dict(sorted(gpus.items())),
        accounts=_names(words.get("AllowAccounts", "")),
        groups=_names(words.get("AllowGroups", "")),
        qos=_names(words.get("AllowQos", "")),
        reserved="YES" in (words.get("Hidden"), words.get("RootOnly"), words.get("ReqResv")),
    )


def _names(text: str) -> tuple[str, ...]:
    return () if text in _ALL else tuple(name for name in text.split(",") if name)
