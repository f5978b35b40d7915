"""Whether Slurm's own limits are as the policy wants them, as page and REST show it. It only looks.

What an Operator may write is written by ``carme-hub quotas mirror --apply``, what takes an administrator by the
commands that are printed; the service itself changes nothing in Slurm.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traitlets.config import Config

from carme_hub.accounting.settings import CarmeMirror
from carme_hub.accounting.slurm_limits import asks_who_is_who, compare
from carme_hub.domain.quotas.sacctmgr_argv import Entity
from carme_hub.domain.quotas.slurm_limits import Change, Needs, UnenforcedRule
from carme_hub.services.hub_users import LOOKED_AT
from carme_hub.slurm.limits import LimitsWriter, script

#: Seconds for one question to Slurm's accounting: somebody waits for the page.
TIMEOUT = 15.0
#: The command for the administrator, on the hub's machine.
APPLY = "sudo carme-hub quotas mirror --apply"


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit that the policy wants, in sacctmgr's words; "" = not set."""

    entity: Entity
    name: str
    key: str
    have: str
    want: str


@dataclass(frozen=True, slots=True)
class Drift:
    """What came out.

    Attributes:
        unknown: why nothing can be said, "" where it can.
        by_hand: what somebody changed in Slurm, and is kept. ours, theirs: what is not written yet, and the hub's
            command may write, or only an administrator of Slurm. left_out: what Slurm cannot keep.
        same: the limits that are as the policy wants them. script: the administrator's commands, a line each.
        config: the hub's configuration file, which the hub's command has to read; absolute.
    """

    unknown: str = ""
    by_hand: tuple[Change, ...] = ()
    ours: tuple[Change, ...] = ()
    theirs: tuple[Change, ...] = ()
    left_out: tuple[UnenforcedRule, ...] = ()
    same: tuple[Limit, ...] = ()
    script: str = ""
    config: str = ""

    @property
    def state(self) -> str:
        """Return "unknown", "same" or "drift"."""
        if self.unknown:
            return "unknown"
        return "drift" if self.by_hand or self.ours or self.theirs else "same"

    @property
    def apply(self) -> str:
        """Return the command that writes what the hub may write, as it is typed in a shell."""
        return self._apply()

    @property
    def force(self) -> str:
        """Return the command that writes over what was set by hand."""
        return self._apply(" --force")

    def _apply(self, more: str = "") -> str:
        return f"{APPLY}{more} --config {shlex.quote(self.config)}"

    @property
    def commands(self) -> tuple[str, ...]:
        """Return what the administrator runs to write what may be written, in the order in which it works."""
        again = bool(self.ours or self.theirs)
        return (*self.script.splitlines(), *((self.apply,) if again else ()))


async def look(service: Any) -> Drift:
    """Compare Slurm's limits with the policy.

    Raises:
        SlurmUnreachable: accounting gave no answer.
    """
    ledger, cluster = service.ledger, service.ledger.context.cluster
    await service.roster.refresh(LOOKED_AT)
    people = service.roster.people
    if not people and asks_who_is_who(ledger):
        return Drift("The hub does not say who is in which group, and the policy has rules about groups or roles.")
    await service.prices.load(ledger)
    writer = LimitsWriter(service.slurm.commands(), cluster, timeout=TIMEOUT)
    compared = await compare(ledger, writer, settings_of(service.config), service.prices, people)
    found = compared.plan
    differ = {change.id for change in (*found.changes, *found.drift)}
    return Drift(
        by_hand=found.drift,
        ours=tuple(change for change in found.changes if change.needs is Needs.OPERATOR),
        theirs=tuple(change for change in found.changes if change.needs is Needs.ADMINISTRATOR),
        left_out=found.left_out,
        same=tuple(_limit(id_, want) for id_, want in sorted(found.wanted.items()) if id_ not in differ),
        script=script(found.changes, cluster),
        config=_absolute(service.config_path),
    )


def settings_of(config: Config) -> CarmeMirror:
    """Return the settings of the mirror; those of its command stand for them, as they did before it had its own."""
    said = Config()
    for name in ("CarmeMirror", "MirrorApp"):
        if name in config:
            said.merge(Config({"CarmeMirror": config[name]}))
    return CarmeMirror(config=said)


def _absolute(file: str) -> str:
    return str(Path(file).absolute())


def _limit(id_: str, want: str) -> Limit:
    entity, _, rest = id_.partition(" ")
    name, _, key = rest.rpartition(" ")
    return Limit(Entity(entity), name, key, want, want)


def limit_words(key: str) -> str:
    """Return a limit's name as sacctmgr has it: "GrpTRES=gres/gpu"."""
    name, cut, tres = key.partition("/")
    if name == "Name":
        return "exists"
    return f"{name}={tres}" if cut else name


def value_words(key: str, value: str) -> str:
    """Return a limit's value with its unit; "not set" for none."""
    name = key.partition("/")[0]
    if name in ("Name", "Flags"):
        return "yes" if value else "no"
    if not value:
        return "not set"
    return f"{value}\u00a0min" if name in ("MaxWall", "GrpTRESMins") else value
