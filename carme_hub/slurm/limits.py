"""Read Slurm's limits through sacctmgr, and make the changes that an Operator may make.

Limits are read as set on each association itself (``WOPLimits``), not as inherited; the allowed QOS are read both ways.
Setting the same value again succeeds and changes nothing, so an interrupted run can be repeated. The quotas service and
``carme-hub quotas`` call this.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from carme_hub.domain.cluster.tres import minutes_of
from carme_hub.domain.quotas.sacctmgr_argv import Entity, Target
from carme_hub.domain.quotas.slurm_limits import AdminLevel, Change, State, commands
from carme_hub.errors import SlurmRejected, SlurmUnreachable

from .command import Answer, Commands

_NAMES = ("Account", "User", "Partition")
_OF_ASSOCIATIONS = ("GrpTRES", "GrpTRESMins", "GrpJobs", "MaxTRES", "MaxJobs", "MaxWall", "QOS", "DefaultQOS")
_OF_QOS = ("Flags", "GrpTRES", "GrpTRESMins", "MaxTRES", "MaxTRESPerUser", "MaxJobsPerUser", "MaxWall")
_REFUSALS = ("Access/permission denied", "Nothing modified", "doesn't have privilege")


class LimitsWriter:
    """Reads and writes limits through sacctmgr.

    Args:
        cluster: ClusterName.
        timeout: seconds for one command; slurmdbd sends each change to the controller at once.
    """

    def __init__(self, commands: Commands, cluster: str, *, timeout: float = 60.0) -> None:
        self._commands = commands
        self._cluster = cluster
        self._timeout = timeout

    async def state(self) -> State:
        """Return all limits that are set on QOS, accounts and users of this cluster.

        Raises:
            SlurmUnreachable: accounting gave no answer, or one that cannot be parsed.
        """
        qos = await self._show("qos", (), ("Name", *_OF_QOS))
        tres = await self._show("tres", (), ("Type", "Name"))
        where = ("where", f"cluster={self._cluster}", "WOPLimits")
        found = await self._show("assoc", where, (*_NAMES, *_OF_ASSOCIATIONS))
        inherited = await self._show("assoc", where[:2], (*_NAMES, "QOS"))
        try:
            limits: dict[Target, dict[str, str]] = {}
            for name, *values in qos:
                limits[Entity.QOS, name] = {"Name": "yes", **_limits(_OF_QOS, values)}
            for account, user, partition, *values in found:
                limits[_target(account, user, partition)] = _limits(_OF_ASSOCIATIONS, values)
        except ValueError as error:
            raise SlurmUnreachable(f"sacctmgr: a limit cannot be understood: {error}") from error
        may_use = {_target(*row[:3]): frozenset(row[3].split(",")) - {""} for row in inherited}
        return State(self._cluster, limits, frozenset("/".join(w for w in row if w) for row in tres), may_use)

    async def apply(self, changes: Iterable[Change]) -> tuple[Change, ...]:
        """Make the changes that an Operator may make, and return those that are confirmed.

        sacctmgr exits with 0 and changes nothing if a user's default QOS is not in the account's new list (seen on
        22.05; 24.11 changes it), so the limits are read again.

        Raises:
            SlurmRejected: Slurm refused one; the changes before it are made. SlurmUnreachable: no answer; try again.
        """
        ours = tuple(change for change in changes if change.admin_level is AdminLevel.OPERATOR)
        for name, *args in commands(ours, self._cluster):
            answer = await self._commands.query(name, *args, timeout=self._timeout)
            if answer.code == 0 and not answer.reports_error:
                continue
            if any(words in answer.err + answer.out for words in _REFUSALS):
                raise SlurmRejected(f"{shlex.join(args)}: {answer.message}", code=answer.code)
            raise SlurmUnreachable(f"sacctmgr: {answer.message}")
        if not ours:
            return ()
        now = await self.state()
        return tuple(change for change in ours if now.value((change.entity, change.name), change.key) == change.want)

    async def _show(self, what: str, where: Sequence[str], fields: Sequence[str]) -> list[list[str]]:
        """Return the rows of ``sacctmgr show``. Administrators choose the names in it, without the separator."""
        words = ("--readonly", "--parsable2", "show", what, *where, f"format={','.join(fields)}")
        answer = await self._commands.query("sacctmgr", *words, timeout=self._timeout)
        if answer.code != 0 or answer.err.strip():  # with slurmdbd down it exits with 0
            raise SlurmUnreachable(f"sacctmgr: {answer.message}")
        return _rows(answer, fields)


def _target(account: str, user: str, partition: str) -> Target:
    name = "/".join(word for word in (account, user, partition) if word)
    return Entity.USER if user else Entity.ACCOUNT, name


def script(changes: Iterable[Change], cluster: str) -> str:
    """Return the commands for an Administrator of Slurm as lines for a shell; "" for none."""
    theirs = (change for change in changes if change.admin_level is AdminLevel.ADMINISTRATOR)
    return "".join(f"{shlex.join(argv)}\n" for argv in commands(theirs, cluster))


def _rows(answer: Answer, fields: Sequence[str]) -> list[list[str]]:
    lines = answer.out.split("\n")
    if lines.pop() or not lines or lines[0].split("|")[0] != fields[0]:
        raise SlurmUnreachable("sacctmgr: the answer is empty or ends in the middle of a line")
    rows = [line.split("|") for line in lines]
    if any(len(row) != len(fields) for row in rows):
        raise SlurmUnreachable("sacctmgr: a line cannot be understood")
    return rows[1:]


def _limits(fields: Sequence[str], values: Sequence[str]) -> dict[str, str]:
    """Return the limits that are set: times in minutes, lists sorted, each TRES and each flag separately."""
    found: dict[str, str] = {}
    for name, text in zip(fields, values, strict=True):
        if not text:
            continue
        if name == "Flags":
            found.update({f"Flags/{flag}": "yes" for flag in text.split(",")})
        elif "TRES" in name:
            for part in text.split(","):
                tres, cut, count = part.partition("=")
                if not cut:
                    raise ValueError(part)
                found[f"{name}/{tres}"] = count
        elif name == "MaxWall":
            found[name] = str(minutes_of(text))
        elif name == "QOS":
            found[name] = ",".join(sorted(text.split(",")))
        else:
            found[name] = text
    return found
