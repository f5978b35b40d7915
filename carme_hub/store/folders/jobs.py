"""Jobs that look at folders, and samples of how much is in each. Synchronous: the service calls it in a thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Engine, delete, func, insert, select, update

from carme_hub.domain.disk_use import DAY, Sample
from carme_hub.domain.folders.folder import FolderState
from carme_hub.domain.folders.jobs import LIVE, MOST_LIVE, FolderJob, JobKind, JobState
from carme_hub.domain.folders.rules import FolderRefused
from carme_hub.store.engine import READ_ONLY, store_errors

from .tables import folder as folders
from .tables import job as jobs
from .tables import sample as samples

#: Jobs that are kept of each folder; days for which samples are.
KEPT_JOBS, KEPT_DAYS = 20, 60
_LIVE = tuple(state.value for state in LIVE)


class FolderJobStore:
    """The jobs and samples of one cluster's folders. Every method raises ``StoreError`` if the database fails."""

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine, self._cluster = engine, cluster

    def add(self, job: FolderJob) -> None:
        """Store a new job, and forget old ones of the folder.

        Raises:
            FolderRefused: one of its kind has not ended yet, or its user has too many of them.
        """
        with store_errors("The job is not stored"), self._engine.begin() as connection:
            # Two requests at once wait for each other here.
            connection.execute(select(folders.c.id).where(folders.c.id == job.folder).with_for_update())
            live = (jobs.c.cluster == self._cluster, jobs.c.state.in_(_LIVE))
            same = select(jobs.c.id).where(*live, jobs.c.folder == job.folder, jobs.c.kind == job.kind.value)
            if connection.execute(same).first() is not None:
                raise FolderRefused("Such a job is under way already. Wait for its end.", reason="busy")
            own = select(func.count()).select_from(jobs).where(*live, jobs.c.user == job.user)
            if int(connection.execute(own).scalar() or 0) >= MOST_LIVE:
                raise FolderRefused(f"{job.user} has {MOST_LIVE} such jobs. Wait for one to end.", reason="busy")
            connection.execute(insert(jobs).values(**_row(job), cluster=self._cluster))
            old = select(jobs.c.id).where(jobs.c.folder == job.folder).order_by(jobs.c.asked.desc()).offset(KEPT_JOBS)
            gone = [row.id for row in connection.execute(old)]
            connection.execute(delete(jobs).where(jobs.c.id.in_(gone), jobs.c.state.not_in(_LIVE)))

    def get(self, id: str) -> FolderJob | None:
        """Return a job, None where there is none."""
        return next(iter(self._find(jobs.c.id == id)), None)

    def of(self, folder: str) -> list[FolderJob]:
        """Return the jobs of a folder, the newest first."""
        return self._find(jobs.c.folder == folder)

    def live(self) -> list[FolderJob]:
        """Return the jobs that have not ended."""
        return self._find(jobs.c.state.in_(_LIVE))

    def measured(self) -> dict[str, float]:
        """Return when each folder was last asked to be measured, by its id."""
        last = func.max(jobs.c.asked)
        where = (jobs.c.cluster == self._cluster, jobs.c.kind == JobKind.MEASURE.value)
        wanted = select(jobs.c.folder, last).where(*where)
        with store_errors("Jobs of folders cannot be read"), self._reading() as connection:
            return {str(id): float(at) for id, at in connection.execute(wanted.group_by(jobs.c.folder))}

    def change(self, id: str, **changes: Any) -> bool:
        """Change a job that has not ended; return whether it had not."""
        values = {name: value.value if isinstance(value, JobState) else value for name, value in changes.items()}
        with store_errors("The job is not changed"), self._engine.begin() as connection:
            done = connection.execute(update(jobs).where(jobs.c.id == id, jobs.c.state.in_(_LIVE)).values(**values))
            return bool(done.rowcount)

    # -- samples ------------------------------------------------------------------------------------------------------

    def put_sample(self, folder: str, at: float, used: int) -> None:
        """Store what a folder has now, in place of the sample of the same day; forget old ones of all folders."""
        day = int(at // DAY)
        with store_errors("The sample is not stored"), self._engine.begin() as connection:
            connection.execute(delete(samples).where(samples.c.folder == folder, samples.c.day == day))
            connection.execute(delete(samples).where(samples.c.day < day - KEPT_DAYS))
            connection.execute(insert(samples).values(folder=folder, day=day, at=at, used=used))

    def samples(self, folder: str) -> list[Sample]:
        """Return a folder's samples, the oldest first."""
        wanted = select(samples.c.at, samples.c.used).where(samples.c.folder == folder).order_by(samples.c.at)
        with store_errors("Samples cannot be read"), self._reading() as connection:
            return [Sample(float(at), int(used)) for at, used in connection.execute(wanted)]

    def sampled(self, day: int) -> set[str]:
        """Return the folders that have a sample of a day (days since 1970, UTC)."""
        with store_errors("Samples cannot be read"), self._reading() as connection:
            return set(connection.execute(select(samples.c.folder).where(samples.c.day == day)).scalars())

    def _reading(self) -> Any:
        return self._engine.connect().execution_options(**{READ_ONLY: True})

    def _find(self, *where: Any) -> list[FolderJob]:
        there = select(folders.c.id).where(folders.c.state != FolderState.REMOVED.value)
        wanted = select(jobs).where(jobs.c.cluster == self._cluster, jobs.c.folder.in_(there), *where)
        with store_errors("Jobs of folders cannot be read"), self._reading() as connection:
            return [_job(row) for row in connection.execute(wanted.order_by(jobs.c.asked.desc()))]


def _row(job: FolderJob) -> dict[str, Any]:
    names = [name for name in FolderJob.__dataclass_fields__ if name not in ("kind", "state")]
    return {**{name: getattr(job, name) for name in names}, "kind": job.kind.value, "state": job.state.value}


def _job(row: Any) -> FolderJob:
    values: Mapping[str, Any] = row._mapping
    kept = {name: value for name, value in values.items() if name != "cluster"}
    return FolderJob(**{**kept, "kind": JobKind(kept["kind"]), "state": JobState(kept["state"])})
