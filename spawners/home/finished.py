"""What the home page says of a session that has ended: what it used, and what to ask for next time. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from carme_hub.domain.activity.advice import Advice, advice
from carme_hub.domain.activity.finished import FinishedJob
from carme_hub.domain.sessions.session import Session
from carme_hub.spawners.hub.finished_jobs import of_ended
from carme_hub.store.activity import JobUse


def advice_of_session(
    session: Session, uses: Iterable[JobUse], finished: Sequence[FinishedJob], *, virtual: bool
) -> Advice:
    """Return what is said of a session that has ended; nothing where nothing was measured."""
    some = list(uses)
    stored = next((job for job in finished if job.session == session.id), None)
    if not some and stored is None:
        return Advice("")
    return advice(stored or of_ended(session, some, virtual=virtual), finished)


def rounded(seconds: float) -> int:
    """Return seconds, whole minutes where there are many."""
    return int(seconds) if seconds < 600 else round(seconds / 60) * 60
