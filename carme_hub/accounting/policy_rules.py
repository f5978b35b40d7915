"""The site's own rules beside its policy: those that packages add as ``carme_hub.policy_rules`` and a setting names.

How one is added is in docs/howto/add-a-policy-rule.md.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping

from carme_hub.domain.quotas.policy_rules import PolicyRequest, PolicyRule
from carme_hub.entry_points import ExtensionPoint
from carme_hub.errors import Refused

from .settings import CarmeQuotas

POINT = ExtensionPoint("carme_hub.policy_rules", "CarmeQuotas.policy_rules", "callable")


class RuleFailed(Refused):
    """A rule failed, so that nobody knows what it would say; nothing is granted then."""

    reason = "policy-rule-failed"


def policy_rules(settings: CarmeQuotas) -> Mapping[str, PolicyRule]:
    """Return the rules that the settings name; one that fails refuses, and its error is logged."""
    named = POINT.load_all(settings.policy_rules, settings)
    return {name: functools.partial(_ask, name, rule, settings.log) for name, rule in named.items()}


def _ask(name: str, rule: PolicyRule, log: logging.Logger, request: PolicyRequest) -> None:
    try:
        rule(request)
    except Refused:
        raise
    except Exception as error:
        log.exception("The policy rule %s failed for %s", name, request.person.user)
        raise RuleFailed(f"The rule “{name}” of this site could not be asked. Tell an administrator.") from error
