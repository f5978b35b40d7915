"""Slurm's own limits against what the policy wants of them: one comparison behind command, page and REST."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from carme_hub.domain.quotas.rules import Person, Who, applying
from carme_hub.domain.quotas.sacctmgr_argv import Entity
from carme_hub.domain.quotas.slurm_limits import GPU, Plan, State, plan
from carme_hub.slurm.limits import LimitsWriter
from carme_hub.store.threads import in_store_thread

from .ledger import Ledger
from .policy_trial import spent_at_most
from .price_list import PriceList
from .settings import CarmeMirror

#: The ledger's note of what was last written to Slurm.
MIRRORED = "mirrored"


@dataclass(frozen=True, slots=True)
class LimitComparison:
    """What Slurm has, what is to be done, and what was last written by us (as ``Plan.written`` has it)."""

    state: State
    plan: Plan
    last: Mapping[str, str]

    @property
    def agrees(self) -> bool:
        """Return whether Slurm is as the policy wants it."""
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
    """Compare Slurm's limits with the policy in force; nothing is written, neither here nor there.

    Args:
        people: groups and roles of everybody. force: plan to overwrite what others have set.

    Raises:
        SlurmUnreachable: accounting gave no answer.
    """
    state, note = await writer.state(), await ledger.note(MIRRORED)
    last: dict[str, str] = note.value["written"] if note else {}
    quotas = ledger.context.policy().quotas
    names = [name for entity, name in state.limits if entity is Entity.ACCOUNT]
    needy = [n for n in names if any(one.quota.needs_grant for one in applying(quotas, Person(""), n))]
    budgets = await in_store_thread(spent_at_most, ledger.context, needy)
    types = {name.removeprefix(f"{GPU}:") for name in state.tres if name.startswith(f"{GPU}:")}
    found = plan(
        quotas,
        state,
        now=ledger.context.clock(),
        people=people,
        budgets=budgets,
        fence=settings.fence(prices.least(types)),
        last=last,
        force=force,
    )
    return LimitComparison(state, found, last)


def asks_who_is_who(ledger: Ledger) -> bool:
    """Return whether the policy has rules about groups or roles; their members are needed to plan them."""
    return any(quota.who in (Who.GROUP, Who.ROLE) for quota in ledger.context.policy().quotas)
