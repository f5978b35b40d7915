"""Images that users build. Synchronous, called in a thread; the hub opens builds, the ``images`` service keeps them.

How a build ended is what its batch job says: as long as nobody has written it down, each read looks there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from sqlalchemy import Engine, insert, select, update
from sqlalchemy.exc import IntegrityError

from carme_hub.domain.cluster.reasons import end_sentence
from carme_hub.domain.images.builds import NAMED, NEVER_BEGUN, Build, BuildState, CannotBuild
from carme_hub.domain.images.offers import Offer, To
from carme_hub.domain.images.wanted import Wanted
from carme_hub.domain.sessions.session import SessionState
from carme_hub.domain.wording import escaped
from carme_hub.store.engine import READ_ONLY, store_errors
from carme_hub.store.tables import session as sessions

from .tables import image as images
from .tables import image_build as table

_DONE = end_sentence("COMPLETED")
#: Of what is wanted, besides the offer.
_OF_WANTED = tuple(each.name for each in fields(Wanted) if each.name != "offer")
_COLUMNS = [each for each in table.c if each.name != "cluster"]


class BuildStore:
    """The builds of one cluster. Every method raises ``StoreError`` if the database fails."""

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine, self.cluster = engine, cluster

    def add(self, build: Build) -> None:
        """Store a new build; the same one again changes nothing.

        Raises:
            CannotBuild: another image has its name.
        """
        taken = CannotBuild(f"Another image is called {build.name}. Choose another name.")
        # Also one that is gone: its offers are kept by its name, and would hold for this one.
        one = (images.c.cluster == self.cluster, images.c.name == build.name)
        row = {"cluster": self.cluster, **_row(build)}
        with store_errors("The build is not stored"), self._engine.begin() as connection:
            if connection.execute(select(table.c.id).where(table.c.id == build.id)).first() is not None:
                return
            if connection.execute(select(images.c.name).where(*one)).first() is not None:
                raise taken
            try:
                connection.execute(insert(table).values(**row))
            except IntegrityError as error:
                raise taken from error

    def change(self, id: str, only: BuildState | None = None, **values: Any) -> bool:
        """Change a build; return whether it was there, and in this state.

        Args:
            only: the state in which it must be; None = any but removed. values: of its columns.
        """
        if isinstance(values.get("state"), BuildState):
            values["state"] = values["state"].value
        if "wanted" in values and values["wanted"] is not None:
            values["wanted"] = _wanted_row(values["wanted"])
        of_state = table.c.state == only.value if only else table.c.state != BuildState.REMOVED.value
        where = (table.c.cluster == self.cluster, table.c.id == id, of_state)
        with store_errors("The build is not changed"), self._engine.begin() as connection:
            return bool(connection.execute(update(table).where(*where).values(**values)).rowcount)

    def change_wanted(self, id: str, before: Wanted | None, after: Wanted | None) -> bool:
        """Change what is wanted of a build that is ready; return whether it was still what it was before."""
        where = (table.c.cluster == self.cluster, table.c.id == id, table.c.state == BuildState.READY.value)
        with store_errors("The build is not changed"), self._engine.begin() as connection:
            row = connection.execute(select(table.c.wanted).where(*where).with_for_update()).first()
            if row is None or _wanted(row.wanted) != before:
                return False
            values = {"wanted": _wanted_row(after) if after is not None else None}
            connection.execute(update(table).where(*where).values(**values))
            return True

    def build(self, id: str, now: float) -> Build | None:
        """Return one build, also a removed one."""
        return next(iter(self._read(now, table.c.id == id)), None)

    def named(self, name: str, now: float) -> Build | None:
        """Return the build that has a name now."""
        found = self._read(now, table.c.name == name, table.c.state.in_([each.value for each in NAMED]))
        return next((each for each in found if each.state in NAMED), None)

    def builds(self, now: float, user: str = "") -> list[Build]:
        """Return all builds that are not removed, of all users or of one, oldest first."""
        of_user = [table.c.user == user] if user else []
        return self._read(now, table.c.state != BuildState.REMOVED.value, *of_user)

    def removed(self, user: str, since: float, now: float) -> list[str]:
        """Return the ids of a user's builds that were removed or failed since, and whose files may be there."""
        gone = (BuildState.REMOVED, BuildState.FAILED)
        found = self._read(now, table.c.user == user, table.c.state != BuildState.READY.value)
        return [each.id for each in found if each.state in gone and each.ended >= since]

    def settle(self, now: float) -> list[Build]:
        """Write down how builds have ended; return those that have."""
        settled = []
        for row in self._rows(table.c.state == BuildState.BUILDING.value):
            build = _of_row(row, now)
            if build.state is not BuildState.BUILDING:
                values = {"state": build.state, "ended": build.ended, "problem": build.problem}
                if self.change(build.id, BuildState.BUILDING, **values):
                    settled.append(build)
        return settled

    def _read(self, now: float, *where: Any) -> list[Build]:
        return [_of_row(row, now) for row in self._rows(*where)]

    def _rows(self, *where: Any) -> list[Any]:
        of_job = [sessions.c.state.label("job_state"), sessions.c.ended.label("job_ended"), sessions.c.end_reason]
        joined = table.outerjoin(sessions, sessions.c.id == table.c.id)
        query = select(*_COLUMNS, *of_job).select_from(joined).where(table.c.cluster == self.cluster, *where)
        options = {READ_ONLY: True}
        with (
            store_errors("Images of users cannot be read"),
            self._engine.connect().execution_options(**options) as connection,
        ):
            return list(connection.execute(query.order_by(table.c.created, table.c.id)))


def _row(build: Build) -> dict[str, Any]:
    wanted = _wanted_row(build.wanted) if build.wanted is not None else None
    return {**asdict(build), "state": build.state.value, "wanted": wanted}


def _wanted_row(wanted: Wanted) -> dict[str, Any]:
    offer = wanted.offer
    said = {"to": offer.to.value, "name": offer.name, "by": offer.by, "at": offer.at}
    return {**said, **{name: getattr(wanted, name) for name in _OF_WANTED}}


def _wanted(said: Mapping[str, Any] | None) -> Wanted | None:
    if said is None:
        return None
    offer = Offer(To(said["to"]), said["name"], said["by"], float(said["at"]))
    more = {name: said[name] for name in _OF_WANTED if name in said}
    found = Wanted(offer, **more)
    return replace(found, problem=escaped(found.problem), waiting=escaped(found.waiting))


def _of_row(row: Any, now: float) -> Build:
    values = {each.name: getattr(row, each.name) for each in _COLUMNS}
    build = Build(**{**values, "state": BuildState(row.state), "wanted": _wanted(row.wanted)})
    if build.state is not BuildState.BUILDING:
        return build
    if row.job_state is None:
        begun = now < build.created + NEVER_BEGUN
        return build if begun else replace(build, state=BuildState.FAILED, ended=now, problem="It was never submitted.")
    if row.job_state != SessionState.ENDED.value:
        return build
    if row.end_reason == _DONE:
        return replace(build, state=BuildState.READY, ended=float(row.job_ended))
    why = row.end_reason.replace("The server ended", "The build ended", 1).replace("the job's output", "its log", 1)
    return replace(build, state=BuildState.FAILED, ended=float(row.job_ended), problem=why)
