"""Which Slurm accounts a visitor may charge, as Slurm says it, and as the hub knew it where Slurm is silent."""

from __future__ import annotations

from carme_hub.services.handlers import Visitor
from carme_hub.sessions.associations import AssociationBook


async def accounts_of(book: AssociationBook, visitor: Visitor) -> tuple[str, ...]:
    """Return the accounts that a visitor may charge, the default one first; a service may charge none."""
    if not visitor.is_user:
        return ()
    await book.refresh()
    return book.accounts_of(visitor.name) or visitor.accounts  # Slurm is silent: what the hub knew at the login
