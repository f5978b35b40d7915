"""Faults of the policy: it cannot be read, it needs something that Slurm lacks, or a rule of it limits nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator

from traitlets import TraitError
from traitlets.config import Config

from carme_hub.accounting.settings import CarmeQuotas, PolicyInForce
from carme_hub.booking.settings import CarmeReservations
from carme_hub.domain.quotas.policy import Policy
from carme_hub.errors import ConfigError

from .activity import check_idle
from .findings import Finding, advice, unsafe


def check(config: Config) -> Iterator[Finding]:
    """Yield why the policy cannot come into force, and which of its rules limit nothing."""
    wrong = "correct what the message names"
    try:
        policy = _policy(config)
    except (TraitError, ConfigError) as error:
        yield unsafe("CarmeQuotas", "", f"the hub cannot start: {error}", wrong)
        return
    try:
        settings = CarmeReservations(config=config)
        has_calendar = settings.enabled
        settings.counted_by()
    except (TraitError, ConfigError) as error:
        yield unsafe("CarmeReservations", "", f"the hub cannot start: {error}", wrong)
        return
    yield from _booking(policy, has_calendar)
    yield from check_idle(config, policy.idle)


def _booking(policy: Policy, has_calendar: bool) -> Iterator[Finding]:
    """Yield the rules on booking that limit nothing. ``has_calendar``: whether there is a calendar."""
    rules = [quota.id for quota in policy.quotas if quota.booking]
    past = [f"blackouts[{n}]" for n, each in enumerate(policy.blackouts) if each.period.end <= time.time()]
    if (rules or policy.blackouts) and not has_calendar:
        what = f"booking of {', '.join(rules)}" if rules else "blackouts"
        why = f"the policy has {what}, and there is no calendar in which anything can be booked"
        yield advice("CarmeReservations.enabled", False, why, "configure(c, reservations=True)")
    elif past:
        yield advice("blackouts", ", ".join(past), "over, so it keeps nothing free", "remove it, or correct its year")


def soft_qos(config: Config) -> tuple[str, ...]:
    """Return the QOS that the policy gives sessions over a soft limit, each once."""
    try:
        rules = _policy(config).quotas
    except (TraitError, ConfigError):
        return ()  # said already
    return tuple(dict.fromkeys(rule.soft_qos for rule in rules if rule.soft_qos))


def licenses(config: Config) -> dict[str, str]:
    """Return the license by which the calendar counts each GPU type, {} where none is."""
    try:
        return CarmeReservations(config=config).counted_by()
    except (TraitError, ConfigError):
        return {}  # said already


def _policy(config: Config) -> Policy:
    settings = CarmeQuotas(config=config)
    return PolicyInForce(settings)() if settings.enabled else Policy()
