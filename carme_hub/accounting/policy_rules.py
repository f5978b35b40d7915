"""The site's own rules in addition to its policy, from the entry points ``carme_hub.policy_rules``.

``CarmeQuotas.policy_rules`` names the rules in use. docs/howto/add-a-policy-rule.md describes how to add one.
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
    """A rule failed, so its decision is unknown; nothing is granted then."""

    reason = "policy-rule-failed"


def policy_rules(settings: CarmeQuotas) -> Mapping[str, PolicyRule]:
    """Return the rules that the settings name; a rule that fails refuses the request, and its error is logged."""
    named = POINT.load_all(settings.policy_rules, settings)
    return {name: functools.partial(_check, name, rule, settings.log) for name, rule in named.items()}


def _check(name: str, rule: PolicyRule, log: logging.Logger, request: PolicyRequest) -> None:
    try:
        rule(request)
    except Refused:
        raise
    except Exception as error:
        log.exception("The policy rule %s failed for %s", name, request.person.user)
        raise RuleFailed(f"The policy rule “{name}” of this site failed. Tell an administrator.") from error
