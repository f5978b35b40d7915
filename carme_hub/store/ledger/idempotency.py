"""Claims on idempotency keys, and notices: each is written once. The database's unique keys decide which came first.

Synchronous, within a transaction of ``LedgerStore``. The services' REST handlers and notices call this.
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
    """A claim on an idempotency key: who works on it, since when, and the result.

    Attributes:
        key, digest: digests of caller and key, and of the request; 64 hex digits. token: identifies the worker.
        answer: JSON text, None while the work is in progress.
    """

    key: str
    digest: str
    token: str
    at: float
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class SentNotice:
    """A notice that a user has received. ``about``: its subject; there is one notice for each subject."""

    about: str
    user: str
    level: str
    text: str
    at: float


def notices_of(reads: LedgerReads, user: str, since: float) -> list[SentNotice]:
    """Return a user's notices since a time, oldest first; ``about`` is a digest."""
    columns = (notices.c.about, notices.c.user, notices.c.level, notices.c.text, notices.c.at)
    where = (notices.c.cluster == reads.cluster, notices.c.at >= since, notices.c.user == user)
    return [SentNotice(*row) for row in reads.run(select(*columns).where(*where).order_by(notices.c.id))]


def already_notified(reads: LedgerReads, abouts: Iterable[str]) -> set[str]:
    """Return the subjects for which a notice exists."""
    named = {digest(about): about for about in abouts}
    found: set[str] = set()
    for some in chunks(named):
        where = (notices.c.cluster == reads.cluster, notices.c.about.in_(some))
        found.update(named[about] for (about,) in reads.run(select(notices.c.about).where(*where)))
    return found


class IdempotentWrites(LedgerReads):
    """Claims and notices, each written once."""

    def claim(self, wanted: Claim, *, lease: float, keep: float) -> Claim:
        """Claim a key; return the valid claim: the wanted one, or an earlier one.

        Args:
            lease: seconds after which a claim without an answer expires, because its worker is gone. So does a claim
                that is as far in the future, because the clock was set back.
            keep: seconds for which answers are stored.
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
        """Store the answer of our claim, unless another worker has taken it over."""
        mine = (claims.c.key == ours.key, claims.c.token == ours.token)
        self._connection.execute(update(claims).where(*mine).values(answer=answer))

    def drop_claim(self, ours: Claim) -> None:
        """Free a key after failed work."""
        self._connection.execute(delete(claims).where(claims.c.key == ours.key, claims.c.token == ours.token))

    def add_notices(self, found: Sequence[tuple[SentNotice, Sequence[str]]]) -> list[SentNotice]:
        """Store new notices, and return those that did not exist before.

        Args:
            found: notices, each with further subjects; a notice is not new if one of these already has a notice.
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
    """Return the SHA-256 as 64 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def upsert(connection: Any, table: Any) -> Any:
    """Return an INSERT that supports ON CONFLICT."""
    return (sqlite if connection.dialect.name == "sqlite" else postgresql).insert(table)
