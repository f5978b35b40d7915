"""Which Slurm accounts a visitor may charge, as Slurm says it, and as the hub knew it until Slurm has answered."""

from __future__ import annotations

from carme_hub.services.handlers import Visitor
from carme_hub.sessions.associations import AssociationBook


async def accounts_of(book: AssociationBook, visitor: Visitor) -> tuple[str, ...]:
    """Return the accounts that a visitor may charge, the default one first; a service may charge none."""
    if not visitor.is_user:
        return ()
    await book.refresh()
    # Until Slurm has answered, what the hub knew at the login; who is in no account after that is in none.
    return book.accounts_of(visitor.name) if book.known else visitor.accounts
