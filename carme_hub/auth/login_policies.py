"""Login policies: what a site asks of a login beyond our rules, from packages that add ``carme_hub.login_policies``.

Each policy that ``CarmeAuthenticator.login_policies`` names is asked after our own rules have let somebody in, so it
can take away and never give. It is asked at each login, before each start, and when everybody is looked at again.
How one is added is in docs/howto/add-a-login-policy.md.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from jupyterhub.utils import maybe_future

from carme_hub.entry_points import ExtensionPoint
from carme_hub.errors import Refused


@dataclass(frozen=True, slots=True)
class Login:
    """Whom a policy is asked about.

    Attributes:
        user: name of the system user. groups: those of the hub: the system's, ``account:<name>``, ``role:<name>``.
    """

    user: str
    groups: frozenset[str]


#: Raises ``Refused`` to deny; what it returns means nothing.
LoginPolicy = Callable[[Login], Awaitable[None] | None]

POINT = ExtensionPoint("carme_hub.login_policies", "CarmeAuthenticator.login_policies", "callable")


class PolicyFailed(Refused):
    """A policy failed, so that nobody knows what it would say."""

    reason = "login-policy-failed"


async def ask(policies: Mapping[str, LoginPolicy], login: Login, log: logging.Logger) -> None:
    """Ask all policies about a login.

    Raises:
        Refused: one denies; its sentence is for the user. PolicyFailed: one could not be asked.
    """
    for name, policy in policies.items():
        try:
            await maybe_future(policy(login))
        except Refused:
            raise
        except Exception as error:
            log.exception("The login policy %s failed for %s", name, login.user)
            raise PolicyFailed(
                "Whether you may log in could not be checked. Try again in a few minutes, or tell an administrator."
            ) from error
