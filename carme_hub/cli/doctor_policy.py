"""What of the policy of GPU time endangers starts: a policy that cannot be read, and what it needs of Slurm."""

from __future__ import annotations

from collections.abc import Iterator

from traitlets import TraitError
from traitlets.config import Config

from carme_hub.accounting.settings import CarmeQuotas, PolicyInForce
from carme_hub.domain.policy import Policy
from carme_hub.errors import ConfigError

from .findings import Finding, unsafe


def judge(config: Config) -> Iterator[Finding]:
    """Yield why the policy cannot come into force, if it cannot."""
    try:
        _policy(config)
    except (TraitError, ConfigError) as error:
        yield unsafe("CarmeQuotas", "", f"the hub cannot start: {error}", "correct what the message names")


def soft_qos(config: Config) -> tuple[str, ...]:
    """Return the QOS that the policy gives sessions over a soft limit, each once."""
    try:
        rules = _policy(config).quotas
    except (TraitError, ConfigError):
        return ()  # said already
    return tuple(dict.fromkeys(rule.soft_qos for rule in rules if rule.soft_qos))


def _policy(config: Config) -> Policy:
    settings = CarmeQuotas(config=config)
    return PolicyInForce(settings)() if settings.enabled else Policy()
