"""How many nodes a session reports from: no more than its jobs can have had, since the names are the reporter's own."""

from __future__ import annotations

from carme_hub.domain.activity.minutes import MinutesRefused
from carme_hub.domain.sessions.session import Session
from carme_hub.store.activity import ActivityStore
from carme_hub.store.threads import in_store_thread

#: Nodes for each node of the request, and some more: a job that Slurm requeues runs on others.
TIMES, MORE = 4, 4
#: Sessions whose nodes are remembered.
MOST_SESSIONS = 10_000


class ReportingNodes:
    """The nodes from which each session has reported."""

    def __init__(self, store: ActivityStore) -> None:
        self._store = store
        self._known: dict[str, set[str]] = {}

    async def check(self, session: Session, node: str) -> None:
        """Let a node of a session report.

        Raises:
            MinutesRefused: it has reported from more nodes than it can have had. StoreError: the database fails.
        """
        known = self._known.get(session.id)
        if known is None:
            known = set(await in_store_thread(self._store.nodes, session.id))
            while len(self._known) >= MOST_SESSIONS:
                del self._known[next(iter(self._known))]
            known = self._known.setdefault(session.id, known)
        most = TIMES * max(1, session.request.nodes) + MORE
        if node not in known and len(known) >= most:
            raise MinutesRefused(f"The session has reported from {most} nodes, and can have had no more.")
        known.add(node)
