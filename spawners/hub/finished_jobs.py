"""Jobs of a user that have ended: those that the activity service has stored, and sessions that it has not read yet."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from carme_hub.activity.finished_jobs import by_session, of_session
from carme_hub.domain.activity.advice import COMPLETED, LAST_DAYS
from carme_hub.domain.activity.efficiency import Asked
from carme_hub.domain.activity.finished import FinishedJob
from carme_hub.domain.sessions.session import Session
from carme_hub.errors import StoreError
from carme_hub.spawners.hub.shared import HubContext, started_hub
from carme_hub.store.activity import JobUse
from carme_hub.store.threads import in_store_thread

DAY = 86_400
#: Stored jobs that are read for a page: of ours, and of others.
MOST = 40
#: Sessions of the last days that may not be stored yet, and how many at most.
NEW_DAYS, MOST_NEW = 2, 5


async def finished_of(user: str, now: float, jobs: Collection[int] = ()) -> list[FinishedJob]:
    """Return the jobs of a user that have ended, as ``with_new``; none while the database does not answer."""
    hub = started_hub()
    if hub is None or hub.finished_jobs is None:
        return []
    try:
        ended = await hub.registry.ended_of(user, now - NEW_DAYS * DAY, MOST_NEW)
        uses = await in_store_thread(hub.activity_store.jobs, [each.id for each in ended]) if hub.activity_store else []
        return await with_new(hub, user, ended, by_session(uses), now, jobs)
    except StoreError as error:
        hub.log.warning("A page of %s does not say what jobs used: %s", user, error)
        return []


async def with_new(
    hub: HubContext,
    user: str,
    ended: Iterable[Session],
    uses: Mapping[str, Sequence[JobUse]],
    now: float,
    jobs: Collection[int] = (),
) -> list[FinishedJob]:
    """Return the stored jobs of a user, the newest first, and sessions of theirs that have ended since.

    Args:
        ended, uses: sessions of the user that have ended, and what they used. jobs: numbers of jobs that are wanted,
            also where they are not among the newest.

    Raises:
        StoreError: the database fails.
    """
    if hub.finished_jobs is None:
        return []
    store, since = hub.finished_jobs, now - LAST_DAYS * DAY

    def read() -> list[FinishedJob]:
        # Apart: the tasks of a large array must not hide the sessions before it.
        newest = [job for ours in (True, False) for job in store.of_user(user, since, MOST, ours=ours)]
        found = {(job.job_id, int(job.submitted)): job for job in newest}
        # Numbers of jobs come again after years, so the user counts as well.
        wanted = store.known(jobs, since).items() if jobs else ()
        return list((found | {key: job for key, job in wanted if job.user == user}).values())

    stored = await in_store_thread(read)
    known = {job.session for job in stored}
    new = [of_ended(each, uses.get(each.id, ())) for each in ended if each.id not in known and each.started]
    return sorted([*stored, *new], key=lambda job: job.ended, reverse=True)


def of_ended(session: Session, uses: Sequence[JobUse], *, virtual: bool = False) -> FinishedJob:
    """Return a session that has ended as a job, before accounting says in what state it ended."""
    request = session.request
    job = FinishedJob(
        job_id=session.job_id,
        user=session.user,
        account=request.account,
        partition=request.partition,
        state=COMPLETED,
        submitted=session.submitted,
        started=session.started,
        ended=session.ended,
        asked=Asked(request.gpus.whole, request.cpus, request.memory_mib, request.time_limit, virtual=virtual),
        nodes=request.nodes,
    )
    return of_session(job, session, uses)
