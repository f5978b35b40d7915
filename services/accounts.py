"""The Slurm accounts that a visitor may charge, from Slurm, or from the login until Slurm has answered.

Both services call it for their pages and for REST.
"""

from __future__ import annotations

from carme_hub.services.handlers import Visitor
from carme_hub.sessions.associations import AssociationCache


async def accounts_of(associations: AssociationCache, visitor: Visitor) -> tuple[str, ...]:
    """Return the accounts that a visitor may charge, the default account first; a service has none."""
    if not visitor.is_user:
        return ()
    await associations.refresh()
    # Until Slurm has answered, the accounts are those that the hub stored at the login. After that, Slurm's answer
    # counts, also when it names no account.
    return associations.accounts_of(visitor.name) if associations.known else visitor.accounts
