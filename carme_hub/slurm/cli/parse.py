"""Parse the output of Slurm's commands, or raise ``SlurmUnreachable``: all rows or none; unreadable details are empty.

Users choose job names, which may contain any separator, including line breaks (seen: ``sbatch -J $'a\\n1|b|…'`` forges
a line of ``squeue -O``). So every query has its own separator, a random word that no name can contain, and the answer
is split only at that word. The header must match exactly: Slurm's commands can exit with 0 and print nothing.

Values that users can set on a job, such as ``--gres='gpu:(:1'``, must not make the whole answer unreadable. So a row
must identify its job (id, name, user, state, submit time), and any other value that cannot be parsed is empty.
"""

from __future__ import annotations

import re
import secrets
import string
import time
from collections.abc import Iterator, Mapping

from carme_hub.domain.cluster.jobs import JobRecord
from carme_hub.domain.cluster.node_reasons import bare_reason
from carme_hub.domain.cluster.resources import NO_GPUS, SHARD, Node
from carme_hub.domain.cluster.tres import exit_of, gpus_in_use, gpus_of_gres, gpus_of_tres, hosts_of, phase_of, time_of
from carme_hub.errors import SlurmUnreachable
from carme_hub.slurm.client import Association

from .queue_rows import lenient

#: sacct's fields; it prints them in its header unchanged.
RECORD_FIELDS = (
    "JobIDRaw",
    "User",
    "State",
    "Submit",
    "Start",
    "End",
    "Account",
    "NodeList",
    "AllocTRES",
    "ExitCode",
    "JobName",
)

ASSOCIATION_FIELDS = ("User", "Account", "Partition", "QOS", "DefaultAccount", "Coordinators")

_USABLE = frozenset({"idle", "mixed", "allocated"})
_UNUSABLE_FLAGS = frozenset(
    {
        "blocked",
        "cloud_down",
        "drain",
        "drained",
        "draining",
        "fail",
        "failing",
        "invalid",
        "invalid_reg",
        "maint",
        "maintenance",
        "not_responding",
        "no_respond",
        "powering_down",
        "reboot",
        "reboot_issued",
        "reboot_requested",
        "reserved",
    }
)


def separator() -> str:
    """Return a random word, which no name can contain, since it is made for one query."""
    return "@" + "".join(secrets.choice(string.ascii_lowercase) for _ in range(12)) + "@"


def moment(at: float) -> str:
    """Return a time as sacct and sacctmgr take it, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at))


def records(text: str, cut: str, name: str, user: str) -> tuple[JobRecord, ...]:
    """Parse the records of that name and user in the output of ``sacct -p --delimiter=cut`` with RECORD_FIELDS."""
    try:
        found = rows(text, cut, RECORD_FIELDS, "sacct")
        return tuple(_record(row) for row in found if row["JobName"] == name and row["User"] == user)
    except (ValueError, KeyError) as error:
        raise SlurmUnreachable(f"sacct: the answer cannot be understood: {error}") from error


def nodes(text: str) -> tuple[Node, ...]:
    """Parse the output of ``scontrol show node -d -o``: one line for each node."""
    if not text.endswith("\n"):
        raise SlurmUnreachable("scontrol: the answer ends in the middle of a line")
    try:
        return tuple(_node(line) for line in text.splitlines() if line.strip())
    except (ValueError, KeyError) as error:
        raise SlurmUnreachable(f"scontrol: the answer cannot be understood: {error}") from error


def associations(text: str) -> tuple[Association, ...]:
    """Parse the output of ``sacctmgr -P show user withassoc withcoord`` with ASSOCIATION_FIELDS.

    Administrators choose the names in it, and sacctmgr refuses its own separator in them. A malformed line is skipped
    if there are others.
    """
    lines = text.split("\n")  # a name may contain other line separators of Python
    if lines.pop() or not lines:
        raise SlurmUnreachable("sacctmgr: the answer is empty or ends in the middle of a line")
    header = [word.strip().lower() for word in lines[0].split("|")]
    if header[:4] != ["user", "account", "partition", "qos"] or len(header) != len(ASSOCIATION_FIELDS):
        raise SlurmUnreachable(f"sacctmgr: the header cannot be understood: {lines[0][:80]!r}")
    found = []
    rows = [line.split("|") for line in lines[1:]]
    good = [words for words in rows if len(words) == len(header)]
    if rows and not good:
        raise SlurmUnreachable(f"sacctmgr: a line cannot be understood: {lines[1][:80]!r}")
    for words in good:
        user, account, partition, qos, default, coordinated = words
        if user and account:
            found.append(
                Association(
                    user=user,
                    account=account,
                    partition=partition,
                    qos=tuple(q for q in qos.split(",") if q),
                    default=account == default,
                    coordinator=account in coordinated.split(","),
                )
            )
    return tuple(found)


def rows(text: str, cut: str, header: tuple[str, ...], command: str) -> Iterator[Mapping[str, str]]:
    """Yield the rows after the header: with as many fields as the header, each row ends with cut and a line break."""
    pieces = text.split(cut)
    width = len(header)
    if pieces.pop() != "\n" or len(pieces) % width or tuple(pieces[:width]) != header:
        raise SlurmUnreachable(f"{command}: the answer cannot be understood: {text[:80]!r}")
    for at in range(width, len(pieces), width):
        row = pieces[at : at + width]
        if not row[0].startswith("\n"):
            raise SlurmUnreachable(f"{command}: a line cannot be understood: {row[0][:80]!r}")
        row[0] = row[0][1:]
        yield dict(zip(header, row, strict=True))


def _record(row: Mapping[str, str]) -> JobRecord:
    return JobRecord(
        id=int(row["JobIDRaw"]),
        name=row["JobName"],
        user=row["User"],
        state=row["State"],
        phase=phase_of(row["State"]),
        submitted=time_of(row["Submit"]),
        start=time_of(row["Start"]),
        end=time_of(row["End"]),
        nodes=() if row["NodeList"] == "None assigned" else lenient(hosts_of, (), row["NodeList"]),
        account=row["Account"],
        gpus=lenient(gpus_of_tres, NO_GPUS, row["AllocTRES"]),
        exit_code=lenient(exit_of, None, row["ExitCode"]),
    )


_NODE_WORDS = re.compile(
    r"(?:^|\s)(NodeName|CPUAlloc|CPUEfctv|CPUTot|Gres|GresUsed|NodeAddr|RealMemory|AllocMem|State|Partitions)=(\S*)"
)


#: The reason is free text, and may be followed by the comment, which is, too.
_NODE_REASON = re.compile(r"\sReason=(.*?)(?:\s(?:Comment|Extra|ResumeAfterTime|ReservationName)=.*)?$")


def _node(line: str) -> Node:
    words: dict[str, str] = {}
    for name, value in _NODE_WORDS.findall(line):
        words.setdefault(name, value)  # free text (Reason, Comment) comes last
    state, usable, flags = node_state(words["State"])
    total = int(words.get("CPUEfctv") or words["CPUTot"])
    reason = _NODE_REASON.search(line)
    return Node(
        name=words["NodeName"],
        state=state,
        usable=usable,
        partitions=tuple(p for p in words.get("Partitions", "").split(",") if p),
        cpus=total,
        cpus_used=int(words["CPUAlloc"]),
        memory_mib=int(words["RealMemory"]),
        memory_used_mib=int(words["AllocMem"]),
        gpus=gpus_of_gres(words.get("Gres", "")),
        gpus_used=gpus_in_use(words.get("Gres", ""), words.get("GresUsed", "")),
        address=words.get("NodeAddr", words["NodeName"]),
        shards=gpus_of_gres(words.get("Gres", ""), SHARD),
        flags=flags,
        reason=bare_reason(reason[1]) if reason is not None else "",
    )


def node_state(text: str) -> tuple[str, bool, frozenset[str]]:
    """Return the base state of ``IDLE*+DRAIN`` in lower case, whether jobs can start there, and the flags."""
    base, *flags = text.lower().split("+")
    # A character after the state is a flag, too: * not responding, $ maintenance, @ # ! ~ % and others power and boot.
    marks = base.lstrip("abcdefghijklmnopqrstuvwxyz_")
    base = base.removesuffix(marks) if marks else base
    named = frozenset(flag.rstrip("*") for flag in flags) | ({"not_responding"} if "*" in marks else frozenset())
    return base, base in _USABLE and not marks and not _UNUSABLE_FLAGS & named, named
