"""What is done once: claims on idempotency keys, and notices. The database's own unique keys decide who was first.

Synchronous, and within a transaction of ``LedgerStore``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import delete, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from carme_hub.store.engine import chunks
from carme_hub.store.tables import claim as claims
from carme_hub.store.tables import notice as notices

from .reads import LedgerReads


@dataclass(frozen=True, slots=True)
class Claim:
    """Who works on a key, since when, on what, and what came of it.

    Attributes:
        key, digest: of who asks with which key, and of what is asked; 64 hex digits. token: of who does the work.
        answer: JSON text, None while it is worked on.
    """

    key: str
    digest: str
    token: str
    at: float
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class SentNotice:
    """One sentence that a user was told. ``about``: what it is about; the same is told once."""

    about: str
    user: str
    level: str
    text: str
    at: float


def told_to(reads: LedgerReads, user: str, since: float) -> list[SentNotice]:
    """Return what a user was told since a time, oldest first; ``about`` is a digest."""
    columns = (notices.c.about, notices.c.user, notices.c.level, notices.c.text, notices.c.at)
    where = (notices.c.cluster == reads.cluster, notices.c.at >= since, notices.c.user == user)
    return [SentNotice(*row) for row in reads.run(select(*columns).where(*where).order_by(notices.c.id))]


def were_told(reads: LedgerReads, abouts: Iterable[str]) -> set[str]:
    """Return of which of these things anybody was told."""
    named = {digest(about): about for about in abouts}
    found: set[str] = set()
    for some in chunks(named):
        where = (notices.c.cluster == reads.cluster, notices.c.about.in_(some))
        found.update(named[about] for (about,) in reads.run(select(notices.c.about).where(*where)))
    return found


class OnceWrites(LedgerReads):
    """Claims and notices, each written once."""

    def claim(self, wanted: Claim, *, lease: float, keep: float) -> Claim:
        """Claim a key; return the claim that stands: the wanted one, or that of who was first.

        Args:
            lease: seconds after which a claim without an answer is free again: who worked on it is gone. So is one
                that is as far ahead: the clock was put back since.
            keep: seconds for which answers are kept.
        """
        self._connection.execute(delete(claims).where(claims.c.at < wanted.at - keep))
        far = or_(claims.c.at < wanted.at - lease, claims.c.at > wanted.at + lease)
        self._connection.execute(delete(claims).where(claims.c.key == wanted.key, claims.c.answer.is_(None), far))
        row = {"key": wanted.key, "cluster": self.cluster, "digest": wanted.digest, "token": wanted.token}
        insert = upsert(self._connection, claims).values(**row, at=wanted.at)
        self._connection.execute(insert.on_conflict_do_nothing(index_elements=["key"]))
        columns = (claims.c.key, claims.c.digest, claims.c.token, claims.c.at, claims.c.answer)
        return Claim(*self._connection.execute(select(*columns).where(claims.c.key == wanted.key)).one())

    def answer_claim(self, ours: Claim, answer: str) -> None:
        """Keep what came of our claim; nothing where it was taken over since."""
        mine = (claims.c.key == ours.key, claims.c.token == ours.token)
        self._connection.execute(update(claims).where(*mine).values(answer=answer))

    def drop_claim(self, ours: Claim) -> None:
        """Free a key whose work came to nothing."""
        self._connection.execute(delete(claims).where(claims.c.key == ours.key, claims.c.token == ours.token))

    def tell(self, found: Sequence[tuple[SentNotice, Sequence[str]]]) -> list[SentNotice]:
        """Note what is to be told, and return what was not told before.

        Args:
            found: what is to be told, and what else makes it old: things that it is about too, and says nothing new of
                once they were told.
        """
        digests = {each.about: digest(each.about) for each, _ in found}
        digests.update((about, digest(about)) for _, more in found for about in more)
        known: set[str] = set()
        for some in chunks(digests.values()):
            where = (notices.c.cluster == self.cluster, notices.c.about.in_(some))
            known.update(self._connection.execute(select(notices.c.about).where(*where)).scalars())
        new: dict[str, SentNotice] = {}
        for each, more in found:
            if known.isdisjoint(digests[about] for about in (each.about, *more)):
                known.add(digests[each.about])
                new[digests[each.about]] = each
        written: set[str] = set()
        for some in chunks(new):
            insert = upsert(self._connection, notices).on_conflict_do_nothing(index_elements=["cluster", "about"])
            rows = [{**asdict(new[about]), "about": about, "cluster": self.cluster} for about in some]
            written.update(self._connection.execute(insert.values(rows).returning(notices.c.about)).scalars())
        return [each for about, each in new.items() if about in written]


def digest(text: str) -> str:
    """Return 64 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def upsert(connection: Any, table: Any) -> Any:
    """Return an INSERT that may say what happens where the row is there already."""
    return (sqlite if connection.dialect.name == "sqlite" else postgresql).insert(table)
