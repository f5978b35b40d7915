"""What the hub's home page says of a visitor's sessions: what they use, and what has ended in the last days."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from carme_hub.activity.finished_jobs import by_session
from carme_hub.domain.activity.finished import FinishedJob
from carme_hub.domain.activity.minutes import HOUR
from carme_hub.domain.sessions.availability import Cluster
from carme_hub.domain.sessions.session import Session
from carme_hub.spawners.console.inbox import shown_messages
from carme_hub.spawners.handlers.home.ended import EndedJobs, EndedLookup
from carme_hub.spawners.handlers.notices import NoticeLookup
from carme_hub.spawners.home.cards import StoredUse, cards, ended_cards, profile_names
from carme_hub.spawners.home.cluster_now import cluster_now
from carme_hub.spawners.home.idle_end import idle_end_notes
from carme_hub.spawners.home.jobs import JobRow, job_rows, sessions_by_job
from carme_hub.spawners.hub.finished_jobs import with_new
from carme_hub.spawners.hub.shared import HubContext, started_hub
from carme_hub.spawners.jobs.ended import ended_rows
from carme_hub.store.threads import in_store_thread

#: Days for which an ended session is shown, and how many at most.
ENDED_DAYS, MOST_ENDED = 3, 5


@dataclass(frozen=True, slots=True)
class SessionNews:
    """What the database says of a user's sessions and jobs: what they use, and those that have ended."""

    stored: StoredUse = field(default_factory=StoredUse)
    ended: Sequence[Session] = ()
    #: Jobs that were not the hub's and have ended, as accounting has them.
    jobs: EndedJobs = field(default_factory=EndedJobs)
    #: Those and others, also the hub's, as the activity service has stored them, with what they used.
    finished: Sequence[FinishedJob] = ()


class SessionLookup(NoticeLookup[SessionNews]):
    """Reads what a user's sessions use, and those that have ended in the last days."""

    def __init__(self) -> None:
        super().__init__(SessionNews(), "Sessions")
        #: Reads what has ended of the user's other jobs, from accounting.
        self.ended = EndedLookup()

    def _question(self, user: Any, hub: Any) -> Callable[[], Awaitable[SessionNews]] | None:
        async def ask() -> SessionNews:
            now = time.time()
            ended = await hub.registry.ended_of(user.name, now - ENDED_DAYS * 86400, MOST_ENDED)
            _, runs = await in_store_thread(hub.runs.of, user.name)
            if hub.activity_store is None:
                return SessionNews(StoredUse(runs=runs), ended)
            open_ids = [each.id for each in hub.registry.open_sessions() if each.user == user.name]
            uses = await in_store_thread(hub.activity_store.jobs, [*open_ids, *(each.id for each in ended)])
            minutes = await in_store_thread(hub.activity_store.minutes, open_ids, now - HOUR)
            ledger = hub.admission.ledger.context if hub.admission is not None else None
            parts = hub.idle_events, ledger, hub.registry.cluster
            notes = await idle_end_notes(*parts, ended, virtual=bool(getattr(user.spawner, "virtual", False)))
            found = by_session(uses)
            finished = await with_new(hub, user.name, ended, found, now, self.ended.known(user.name).ids)
            return SessionNews(StoredUse(True, found, minutes, runs, notes), ended, finished=finished)

        return ask if hasattr(hub, "registry") else None


async def session_news(handler: Any) -> SessionNews:
    """Return what database and accounting say of the visitor; nothing where they do not answer soon."""
    lookup: SessionLookup = handler.settings.setdefault("carme_sessions", SessionLookup())
    user = handler.current_user
    jobs = await lookup.ended.for_user(started_hub(), user.name)  # first: the database is asked about these jobs
    return replace(await lookup.for_user(user), jobs=jobs)


async def seen_cluster(hub: HubContext | None) -> Cluster | None:
    """Return the cluster as the hub last saw it, which all pages share; None on a hub without Slurm."""
    return await hub.cluster_cache.cluster() if hub is not None else None


def page_values(
    hub: HubContext | None, user: Any, news: SessionNews, cluster: Cluster | None, now: float
) -> dict[str, Any]:
    """Return what the template of the sessions takes; {} on a hub without Slurm."""
    if hub is None:
        return {}
    virtual = bool(getattr(user.spawner, "virtual", False))
    active = {spawner.name for spawner in user.spawners.values() if spawner.active}
    jobs: list[JobRow] = []
    left_out = 0
    if hub.watcher.latest is not None:
        own = sessions_by_job(each for each in hub.registry.open_sessions() if each.user == user.name)
        jobs, left_out = job_rows(hub.watcher.latest, user.name, own, now, virtual=virtual)
    ended_jobs, ended_left_out = ended_rows(news.jobs.groups, news.finished, now, virtual=virtual)
    return {
        "jobs": jobs,
        "jobs_left_out": left_out,
        "ended_jobs": ended_jobs,
        "ended_jobs_left_out": ended_left_out + news.jobs.left_out,
        "submits_again": hub.settings.submit_again,
        "messages": shown_messages(hub, user.name, now),
        "cluster": cluster_now(cluster, now, virtual=virtual) if cluster is not None else None,
        "cards": cards(hub, user, news.stored, now),
        "ended": ended_cards(
            *(hub, news.ended, profile_names(user.spawner), news.stored, now),
            virtual=virtual,
            finished=news.finished,
            names={name: server.display_name for name, server in user.orm_spawners.items() if server.display_name},
        ),
        "active_servers": active,
        "end_is_listed": _end_is_listed(hub, user, news),
    }


def _end_is_listed(hub: HubContext, user: Any, news: SessionNews) -> bool:
    """Return whether the default server's last end is among the sessions that have ended.

    One whose end the hub is looking up is not there yet, and is said on its own.
    """
    last = hub.registry.last_end(user.name, "")
    return last is not None and not hub.registry.open_of(user.name, "") and last.id in {each.id for each in news.ended}
