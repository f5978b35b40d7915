"""Login policies: a site's own conditions for a login, from the entry points ``carme_hub.login_policies``.

``CarmeAuthenticator.login_policies`` names the policies in use. They are called after the built-in rules have allowed a
user, so a policy can only deny. They are called at each login, before each start, and when logged-in users are checked
again. docs/howto/add-a-login-policy.md describes how to add one.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from carme_hub.entry_points import ExtensionPoint, call
from carme_hub.errors import Refused


@dataclass(frozen=True, slots=True)
class Login:
    """A user on whom a policy decides.

    Attributes:
        user: name of the system user. groups: the hub's groups of the user: those of the system, ``account:<name>``,
            ``role:<name>``.
    """

    user: str
    groups: frozenset[str]


#: Raises ``Refused`` to deny; the returned value is ignored. A plain one is called in a thread.
LoginPolicy = Callable[[Login], Awaitable[None] | None]

POINT = ExtensionPoint("carme_hub.login_policies", "CarmeAuthenticator.login_policies", "callable")


class PolicyFailed(Refused):
    """A policy failed, so its decision is unknown."""

    reason = "login-policy-failed"


async def check(policies: Mapping[str, LoginPolicy], login: Login, log: logging.Logger) -> None:
    """Check a login against all policies.

    Raises:
        Refused: a policy denies the login; its sentence is for the user. PolicyFailed: a policy failed.
    """
    for name, policy in policies.items():
        try:
            await call(policy, login)
        except Refused:
            raise
        except Exception as error:
            log.exception("The login policy %s failed for %s", name, login.user)
            raise PolicyFailed(
                "Your permission to log in could not be checked. Try again in a few minutes, or tell an administrator."
            ) from error
