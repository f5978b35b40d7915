"""Jobs that have ended with what they used, and the weekly mail of each user. Synchronous, called in a thread.

The ``activity`` service is the only writer; the hub reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Engine, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from carme_hub.domain.activity.finished import FinishedJob, Unused, from_json, to_json, unused_of, week_of
from carme_hub.errors import StoreError

from .engine import READ_ONLY, chunks
from .tables import UNUSED_SUMS
from .tables import advice_mail as mails
from .tables import finished_job as jobs

#: Rows of one transaction, so that no other writer waits long.
ROWS = 500


class FinishedJobStore:
    """The finished jobs of one cluster. Every method raises ``StoreError`` if the database fails."""

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine, self._cluster = engine, cluster

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def put(self, found: Sequence[FinishedJob]) -> None:
        """Store jobs; one that is there already is replaced: its last minutes may have come since."""
        for at in range(0, len(found), ROWS):
            some = found[at : at + ROWS]
            try:
                with self._engine.begin() as connection:
                    for job in some:
                        key = {
                            "cluster": self._cluster,
                            "job_id": job.job_id,
                            "submitted": int(job.submitted),
                        }
                        where = [getattr(jobs.c, name) == value for name, value in key.items()]
                        if not connection.execute(update(jobs).where(*where).values(**_values(job))).rowcount:
                            connection.execute(insert(jobs).values(**key, **_values(job)))
            except SQLAlchemyError as error:
                raise StoreError(f"The database did not take finished jobs: {error}") from error

    def last_end(self) -> float:
        """Return when the job ended that ended last, 0 = there is none."""
        [row] = self._read(select(func.max(jobs.c.ended)).where(jobs.c.cluster == self._cluster))
        return float(row[0] or 0.0)

    def known(self, ids: Collection[int], since: float) -> dict[tuple[int, int], FinishedJob]:
        """Return those of these jobs that are stored and ended after a time, by job id and submit time."""
        found: dict[tuple[int, int], FinishedJob] = {}
        for some in chunks(ids):
            where = (jobs.c.cluster == self._cluster, jobs.c.job_id.in_(some), jobs.c.ended >= since)
            for row in self._read(select(jobs.c.about).where(*where)):
                job = from_json(row.about)
                found[job.job_id, int(job.submitted)] = job
        return found

    def of_user(self, user: str, since: float, limit: int = 200, *, ours: bool | None = None) -> list[FinishedJob]:
        """Return the jobs of a user that ended after a time, the newest first.

        Args:
            ours: only sessions, companions and batch jobs of ours, or only others; None = all.
        """
        where = [jobs.c.cluster == self._cluster, jobs.c.user == user, jobs.c.ended >= since]
        if ours is not None:
            where.append(jobs.c.session != "" if ours else jobs.c.session == "")
        return self._jobs(select(jobs.c.about).where(*where).order_by(jobs.c.ended.desc()).limit(limit))

    def users_since(self, since: float) -> list[str]:
        """Return the users whose jobs ended after a time."""
        where = (jobs.c.cluster == self._cluster, jobs.c.ended >= since)
        return [row.user for row in self._read(select(jobs.c.user).where(*where).distinct().order_by(jobs.c.user))]

    def unused(self, since_week: int, account: str | None = None) -> dict[str, dict[int, Unused]]:
        """Return what was not used from a week on, by account and week."""
        where = [jobs.c.cluster == self._cluster, jobs.c.week >= since_week]
        if account is not None:
            where.append(jobs.c.account == account)
        sums = [func.sum(getattr(jobs.c, name)).label(name) for name in UNUSED_SUMS]
        query = select(jobs.c.account, jobs.c.week, func.count().label("jobs"), *sums).where(*where)
        found: dict[str, dict[int, Unused]] = {}
        for row in self._read(query.group_by(jobs.c.account, jobs.c.week)):
            values = {name: int(getattr(row, name) or 0) for name in ("jobs", *UNUSED_SUMS)}
            found.setdefault(row.account, {})[int(row.week)] = Unused(**values)
        return found

    def prune(self, before: float) -> None:
        """Drop jobs that ended before a time."""
        self._write(delete(jobs).where(jobs.c.cluster == self._cluster, jobs.c.ended < before))

    # -- the weekly mail ----------------------------------------------------------------------------------------------

    def claim_mail(self, user: str, week: int) -> bool:
        """Note that the mail of a week is sent to a user; return whether it is to be sent: once, and where wanted."""
        where = (mails.c.cluster == self._cluster, mails.c.user == user)
        wanted = (*where, mails.c.week < week, mails.c.unwanted == 0)
        if self._write(update(mails).where(*wanted).values(week=week)):
            return True
        if self._read(select(mails.c.user).where(*where)):
            return False
        return self._insert(user, week=week, unwanted=0.0)

    def wants_mail(self, user: str) -> bool:
        """Return whether a user gets the weekly mail."""
        found = self._read(select(mails.c.unwanted).where(mails.c.cluster == self._cluster, mails.c.user == user))
        return not any(row.unwanted for row in found)

    def set_mail(self, user: str, *, wanted: bool, now: float) -> None:
        """Set whether a user gets the weekly mail."""
        since = 0.0 if wanted else now
        where = (mails.c.cluster == self._cluster, mails.c.user == user)
        if not self._write(update(mails).where(*where).values(unwanted=since)) and not self._insert(
            user, week=0, unwanted=since
        ):
            self._write(update(mails).where(*where).values(unwanted=since))

    def _insert(self, user: str, *, week: int, unwanted: float) -> bool:
        """Write a user's first row; return whether nobody else has done so in the same moment."""
        try:
            with self._engine.begin() as connection:
                connection.execute(insert(mails).values(cluster=self._cluster, user=user, week=week, unwanted=unwanted))
        except IntegrityError:
            return False
        except SQLAlchemyError as error:
            raise StoreError(f"The database did not take whether a mail is wanted: {error}") from error
        return True

    # -- the database -------------------------------------------------------------------------------------------------

    def _jobs(self, statement: Any) -> list[FinishedJob]:
        return [from_json(row.about) for row in self._read(statement)]

    def _write(self, statement: Any) -> int:
        try:
            with self._engine.begin() as connection:
                return int(connection.execute(statement).rowcount)
        except SQLAlchemyError as error:
            raise StoreError(f"The database did not take a change of finished jobs: {error}") from error

    def _read(self, statement: Any) -> list[Any]:
        try:
            with self._engine.connect().execution_options(**{READ_ONLY: True}) as connection:
                return list(connection.execute(statement))
        except SQLAlchemyError as error:
            raise StoreError(f"Finished jobs cannot be read: {error}") from error


def _values(job: FinishedJob) -> dict[str, Any]:
    sums = {name: value for name, value in asdict(unused_of(job)).items() if name != "jobs"}
    about = {"user": job.user, "account": job.account, "session": job.session, "ended": job.ended}
    return {**about, "week": week_of(job.ended), "about": to_json(job), **sums}


def by_user(found: Iterable[FinishedJob]) -> dict[str, list[FinishedJob]]:
    """Return jobs by their users, in the same order."""
    users: dict[str, list[FinishedJob]] = {}
    for job in found:
        users.setdefault(job.user, []).append(job)
    return users
