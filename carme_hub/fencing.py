"""The lease that this process acts under, and the check before an act that no database can undo.

``carme-hub standby`` starts the hub with a ticket in its environment; the hub's services get it too.
``CarmeStore.open`` sets the check, and ``slurm.command`` calls it. Without a ticket, as on a site with one hub, nothing
is checked (docs/explanation/two-hubs.md).
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from carme_hub.errors import ConfigError

#: The variable that holds the ticket. It is no secret.
VARIABLE = "CARME_HUB_LEASE"
#: Holds the descriptor on which the hub's event loop says to ``carme-hub standby`` that it runs.
ALIVE = "CARME_HUB_ALIVE_FD"
#: Exit status of a hub that has found another one active (EX_TEMPFAIL of sysexits.h): its host stands by again.
NOT_ACTIVE = 75


@dataclass(frozen=True, slots=True)
class Ticket:
    """A tenure of the lease.

    Attributes:
        token: the fencing token, which grows with each take-over.
        holder: an id of this tenure alone: after a database was restored from a copy, a token may come twice.
        name: of the lease, which is the cluster's.
    """

    token: int
    holder: str
    name: str

    def __str__(self) -> str:
        return f"{self.token}:{self.holder}:{self.name}"

    @property
    def application_name(self) -> str:
        """The name of the holder's connections in PostgreSQL, at most 63 bytes."""
        return f"carme-hub {self.holder}"


def ticket_of(environ: Mapping[str, str] = os.environ) -> Ticket | None:
    """Return the ticket in an environment, None where there is none; ``ConfigError`` where it cannot be read."""
    text = environ.get(VARIABLE, "")
    if not text:
        return None
    token, _, rest = text.partition(":")
    holder, _, name = rest.partition(":")
    if not (token.isascii() and token.isdigit() and holder and name):
        raise ConfigError(f"{VARIABLE} is {text!r}: only carme-hub standby sets it")
    return Ticket(int(token), holder, name)


_check: Callable[[], Awaitable[None]] | None = None


def check_with(check: Callable[[], Awaitable[None]] | None) -> None:
    """Set what ``may_act`` calls; None for nothing."""
    global _check
    _check = check


async def may_act() -> None:
    """Return if this process may act on Slurm now.

    Raises:
        NotActive: another hub is active. StoreError: it is not known.
    """
    if _check is not None:
        await _check()
