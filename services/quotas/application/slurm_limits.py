"""Comparison of Slurm's own limits with the policy, for the page and REST. It reads only.

``carme-hub quotas mirror --apply`` writes what a Slurm operator may write; a Slurm administrator runs the printed
commands for the rest. The service itself changes nothing in Slurm.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traitlets.config import Config

from carme_hub.accounting.settings import CarmeMirror
from carme_hub.accounting.slurm_limits import compare, needs_members
from carme_hub.domain.quotas.sacctmgr_argv import Entity
from carme_hub.domain.quotas.slurm_limits import AdminLevel, Change, UnenforcedRule
from carme_hub.services.hub_users import PAGE_MAX_AGE
from carme_hub.slurm.limits import LimitsWriter, script

#: Seconds for one query to Slurm's accounting: a person waits for the page.
TIMEOUT = 15.0
#: The administrator's command on the hub's machine.
APPLY = "sudo carme-hub quotas mirror --apply"


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit of the policy, in sacctmgr's format; "" = not set."""

    entity: Entity
    name: str
    key: str
    have: str
    want: str


@dataclass(frozen=True, slots=True)
class Drift:
    """The result of a comparison.

    Attributes:
        unknown: why the comparison is not possible, "" if it is.
        by_hand: limits that somebody changed in Slurm; they are kept.
        operator_changes, administrator_changes: limits to be written, by the hub's command or only by a Slurm
            administrator. left_out: rules that Slurm cannot enforce.
        same: limits in Slurm that agree with the policy. script: the administrator's commands, one per line.
        config: absolute path of the hub's configuration file, which the hub's command reads.
    """

    unknown: str = ""
    by_hand: tuple[Change, ...] = ()
    operator_changes: tuple[Change, ...] = ()
    administrator_changes: tuple[Change, ...] = ()
    left_out: tuple[UnenforcedRule, ...] = ()
    same: tuple[Limit, ...] = ()
    script: str = ""
    config: str = ""

    @property
    def state(self) -> str:
        """Return "unknown", "same" or "drift"."""
        if self.unknown:
            return "unknown"
        return "drift" if self.by_hand or self.operator_changes or self.administrator_changes else "same"

    @property
    def apply(self) -> str:
        """The shell command that writes what the hub may write."""
        return self._apply()

    @property
    def force(self) -> str:
        """The shell command that overwrites what was set by hand."""
        return self._apply(" --force")

    def _apply(self, more: str = "") -> str:
        return f"{APPLY}{more} --config {shlex.quote(self.config)}"

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands that write all limits but those set by hand, in the required order."""
        has_changes = bool(self.operator_changes or self.administrator_changes)
        return (*self.script.splitlines(), *((self.apply,) if has_changes else ()))


async def compare_limits(service: Any) -> Drift:
    """Compare Slurm's limits with the policy.

    Raises:
        SlurmUnreachable: accounting does not answer.
    """
    ledger, cluster = service.ledger, service.ledger.context.cluster
    await service.hub_users.refresh(PAGE_MAX_AGE)
    people = service.hub_users.people
    if not people and needs_members(ledger):
        return Drift("The hub does not say who is in which group, and the policy has rules about groups or roles.")
    await service.prices.load(ledger)
    writer = LimitsWriter(service.slurm.commands(), cluster, timeout=TIMEOUT)
    compared = await compare(ledger, writer, settings_of(service.config), service.prices, people)
    found = compared.plan
    differ = {change.id for change in (*found.changes, *found.drift)}
    return Drift(
        by_hand=found.drift,
        operator_changes=tuple(change for change in found.changes if change.admin_level is AdminLevel.OPERATOR),
        administrator_changes=tuple(
            change for change in found.changes if change.admin_level is AdminLevel.ADMINISTRATOR
        ),
        left_out=found.unenforced,
        same=tuple(_limit(id_, want) for id_, want in sorted(found.wanted.items()) if id_ not in differ),
        script=script(found.changes, cluster),
        config=_absolute(service.config_path),
    )


def settings_of(config: Config) -> CarmeMirror:
    """Return the mirror's settings; those of ``MirrorApp`` count too, where they were in earlier releases."""
    merged = Config()
    for name in ("CarmeMirror", "MirrorApp"):
        if name in config:
            merged.merge(Config({"CarmeMirror": config[name]}))
    return CarmeMirror(config=merged)


def _absolute(file: str) -> str:
    return str(Path(file).absolute())


def _limit(id_: str, want: str) -> Limit:
    entity, _, rest = id_.partition(" ")
    name, _, key = rest.rpartition(" ")
    return Limit(Entity(entity), name, key, want, want)


def limit_text(key: str) -> str:
    """Return a limit's name in sacctmgr's format: "GrpTRES=gres/gpu"."""
    name, cut, tres = key.partition("/")
    if name == "Name":
        return "exists"
    return f"{name}={tres}" if cut else name


def value_text(key: str, value: str) -> str:
    """Return a limit's value with its unit; "not set" for none."""
    name = key.partition("/")[0]
    if name in ("Name", "Flags"):
        return "yes" if value else "no"
    if not value:
        return "not set"
    return f"{value}\u00a0min" if name in ("MaxWall", "GrpTRESMins") else value
