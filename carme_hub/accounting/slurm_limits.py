"""Comparison of Slurm's own limits with the policy, for ``carme-hub quotas mirror``, the page *Drift* and REST."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from carme_hub.domain.quotas.rules import Person, SubjectKind, applicable
from carme_hub.domain.quotas.sacctmgr_argv import Entity
from carme_hub.domain.quotas.slurm_limits import GPU, Plan, State, plan
from carme_hub.slurm.limits import LimitsWriter
from carme_hub.store.threads import in_store_thread

from .ledger import Ledger
from .policy_trial import spending_limits
from .price_list import PriceList
from .settings import CarmeMirror

#: Name of the ledger's note of the limits that were last written to Slurm.
MIRRORED = "mirrored"


@dataclass(frozen=True, slots=True)
class LimitComparison:
    """Slurm's limits, the planned changes, and what the hub last wrote (in the form of ``Plan.written``)."""

    state: State
    plan: Plan
    last: Mapping[str, str]

    @property
    def agrees(self) -> bool:
        """Return whether Slurm's limits are those of the policy."""
        return not (self.plan.changes or self.plan.drift)


async def compare(
    ledger: Ledger,
    writer: LimitsWriter,
    settings: CarmeMirror,
    prices: PriceList,
    people: Mapping[str, Person],
    *,
    force: bool = False,
) -> LimitComparison:
    """Compare Slurm's limits with the policy in force; write neither to Slurm nor to the ledger.

    Args:
        people: groups and roles by user name. force: also plan to overwrite limits that others have set.

    Raises:
        SlurmUnreachable: accounting gave no answer.
    """
    state, note = await writer.state(), await ledger.note(MIRRORED)
    last: dict[str, str] = note.value["written"] if note else {}
    quotas = ledger.context.policy().quotas
    names = [name for entity, name in state.limits if entity is Entity.ACCOUNT]
    needy = [n for n in names if any(one.quota.needs_grant for one in applicable(quotas, Person(""), n))]
    budgets = await in_store_thread(spending_limits, ledger.context, needy)
    types = {name.removeprefix(f"{GPU}:") for name in state.tres if name.startswith(f"{GPU}:")}
    found = plan(
        quotas,
        state,
        now=ledger.context.clock(),
        people=people,
        budgets=budgets,
        limit_settings=settings.limit_settings(prices.lowest_factor(types)),
        last=last,
        force=force,
    )
    return LimitComparison(state, found, last)


def needs_members(ledger: Ledger) -> bool:
    """Return whether the policy has rules about groups or roles, for which the plan needs their members."""
    return any(quota.who in (SubjectKind.GROUP, SubjectKind.ROLE) for quota in ledger.context.policy().quotas)
