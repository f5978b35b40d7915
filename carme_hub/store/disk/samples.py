"""Samples of users' disk use, one a day for each place, and the largest folders of each user. Synchronous."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Engine, delete, insert, select
from sqlalchemy.exc import SQLAlchemyError

from carme_hub.domain.disk_use import DAY, Sample, Use
from carme_hub.errors import StoreError
from carme_hub.store.engine import READ_ONLY

from .tables import disk_folders, disk_sample

#: Days for which samples are kept.
KEPT_DAYS = 60
#: Characters of a path that is kept with samples.
PATH_LENGTH = 300


class DiskUseStore:
    """The samples of one cluster's users. Every method raises ``StoreError`` if the database fails."""

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine, self._cluster = engine, cluster

    def put(self, user: str, at: float, uses: Sequence[Use]) -> None:
        """Store what a user's places have now, in place of the samples of the same day; forget old ones."""
        own = (disk_sample.c.cluster == self._cluster, disk_sample.c.user == user)
        rows = {each.path[:PATH_LENGTH]: each.used for each in uses if not each.shared}
        day = int(at // DAY)
        try:
            with self._engine.begin() as connection:
                for path in rows:
                    same = (disk_sample.c.path == path, disk_sample.c.day == day)
                    connection.execute(delete(disk_sample).where(*own, *same))
                connection.execute(delete(disk_sample).where(*own, disk_sample.c.day < day - KEPT_DAYS))
                if rows:
                    common = {"cluster": self._cluster, "user": user, "day": day, "at": at}
                    values = [{**common, "path": path, "used": used} for path, used in rows.items()]
                    connection.execute(insert(disk_sample), values)
        except SQLAlchemyError as error:
            raise StoreError(f"The database did not take samples of disk use: {error}") from error

    def of(self, user: str) -> dict[str, list[Sample]]:
        """Return a user's samples by place, the oldest first."""
        columns = (disk_sample.c.path, disk_sample.c.at, disk_sample.c.used)
        where = (disk_sample.c.cluster == self._cluster, disk_sample.c.user == user)
        found: dict[str, list[Sample]] = {}
        try:
            with self._engine.connect().execution_options(**{READ_ONLY: True}) as connection:
                for path, at, used in connection.execute(select(*columns).where(*where).order_by(disk_sample.c.at)):
                    found.setdefault(str(path), []).append(Sample(float(at), int(used)))
        except SQLAlchemyError as error:
            raise StoreError(f"Samples of disk use cannot be read: {error}") from error
        return found

    def put_folders(self, user: str, at: float, value: dict[str, Any]) -> None:
        """Store the largest folders of a user, as a session has measured them, in place of those before."""
        mine = (disk_folders.c.cluster == self._cluster, disk_folders.c.user == user)
        try:
            with self._engine.begin() as connection:
                connection.execute(delete(disk_folders).where(*mine))
                connection.execute(insert(disk_folders).values(cluster=self._cluster, user=user, at=at, value=value))
        except SQLAlchemyError as error:
            raise StoreError(f"The database did not take a list of folders: {error}") from error

    def folders(self, user: str) -> tuple[float, dict[str, Any]] | None:
        """Return when a user's folders were measured, and what was found; None where nobody has measured them."""
        where = (disk_folders.c.cluster == self._cluster, disk_folders.c.user == user)
        try:
            with self._engine.connect().execution_options(**{READ_ONLY: True}) as connection:
                found = connection.execute(select(disk_folders.c.at, disk_folders.c.value).where(*where)).one_or_none()
                return None if found is None else (float(found[0]), dict(found[1]))
        except SQLAlchemyError as error:
            raise StoreError(f"The list of folders cannot be read: {error}") from error
