"""Shared folders of one cluster. Synchronous: use cases and the hub call it in a thread."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy import Connection, Engine, delete, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from carme_hub.domain.folders.folder import (
    Folder,
    FolderState,
    Member,
    MemberState,
    OwnerKind,
    SubjectKind,
)
from carme_hub.domain.folders.rules import FolderRefused, NoFolder
from carme_hub.store.engine import READ_ONLY, chunks, store_errors

from .tables import choice as choices
from .tables import event as events
from .tables import folder as folders
from .tables import member as members

_GONE = FolderState.REMOVED.value


@dataclass(frozen=True, slots=True)
class Event:
    """What was done with a folder."""

    at: float
    actor: str
    act: str
    about: str = ""


@dataclass(frozen=True, slots=True)
class Written:
    """What a change writes; ``members`` with the id 0 are new. ``event``: None = nothing that people did."""

    folder: Folder | None = None
    members: Sequence[Member] = ()
    event: Event | None = None


@dataclass(frozen=True, slots=True)
class WithMembers:
    """A folder with all its rows of members."""

    folder: Folder
    members: tuple[Member, ...] = field(default=())


class FolderStore:
    """The folders of one cluster. Every method raises ``StoreError`` if the database fails."""

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine, self._cluster = engine, cluster

    # -- changes ------------------------------------------------------------------------------------------------------

    def create(self, folder: Folder, first: Member, event: Event, most: Callable[[int], None]) -> None:
        """Store a new folder with its first member.

        Args:
            most: is told how many folders the owner has, and raises where that is the most.

        Raises:
            FolderRefused: the name is taken.
        """
        try:
            with store_errors("The folder is not stored"), self._engine.begin() as connection:
                most(self._owned(connection, folder.owner_kind, folder.owner))
                try:
                    connection.execute(insert(folders).values(**_row(folder)))
                except IntegrityError as error:
                    raise _NameTaken from error
                values = {name: value for name, value in _member_row(first).items() if name != "id"}
                connection.execute(insert(members).values(**values))
                self._add_event(connection, folder.id, event)
        except _NameTaken as error:
            raise FolderRefused(
                f"There is a folder {folder.name} already. Choose another name.", reason="taken"
            ) from error

    def change(self, id: str, rule: Callable[[Folder, Sequence[Member]], Written]) -> WithMembers:
        """Change a folder by a rule, which sees it as it is in the transaction that writes; return it afterwards.

        Raises:
            NoFolder: there is none. Refused: the rule refuses, and nothing is changed.
        """
        with store_errors("The folder is not changed"), self._engine.begin() as connection:
            where = (folders.c.id == id, folders.c.cluster == self._cluster, folders.c.state != _GONE)
            row = connection.execute(select(folders).where(*where).with_for_update()).one_or_none()
            if row is None:
                raise NoFolder
            written = rule(_folder(row), self._members(connection, [id]).get(id, []))
            if written.folder is not None:
                values = {name: value for name, value in _row(written.folder).items() if name not in ("id", "cluster")}
                connection.execute(update(folders).where(folders.c.id == id).values(**values))
            for one in written.members:
                values = {name: value for name, value in _member_row(one).items() if name != "id"}
                if one.id:
                    connection.execute(update(members).where(members.c.id == one.id).values(**values))
                else:
                    connection.execute(insert(members).values(**values))
            if written.event is not None:
                self._add_event(connection, id, written.event)
            row = connection.execute(select(folders).where(folders.c.id == id)).one()
            return WithMembers(_folder(row), tuple(self._members(connection, [id]).get(id, [])))

    def set_choice(self, user: str, profile: str, value: str) -> None:
        """Store the folders that a user chose with a profile; "" = none."""
        same = (choices.c.cluster == self._cluster, choices.c.user == user, choices.c.profile == profile)
        row = {"cluster": self._cluster, "user": user, "profile": profile, "value": value}
        with store_errors("The choice of folders is not stored"), self._engine.begin() as connection:
            connection.execute(delete(choices).where(*same))
            if value:
                connection.execute(insert(choices).values(**row))

    @staticmethod
    def _add_event(connection: Connection, id: str, event: Event) -> None:
        connection.execute(insert(events).values(folder=id, **asdict(event)))

    # -- reads --------------------------------------------------------------------------------------------------------

    def get(self, id_or_name: str) -> WithMembers | None:
        """Return a folder by its id or its name, None where there is none."""
        found = self._find(or_(folders.c.id == id_or_name, folders.c.name == id_or_name))
        # A name may look like the id of another folder; the id is meant then.
        return next(iter(sorted(found, key=lambda one: one.folder.id != id_or_name)), None)

    def owned(self, kind: OwnerKind, owner: str) -> int:
        """Return how many folders a user or an account owns."""
        with store_errors("Folders cannot be counted"), self._reading() as connection:
            return self._owned(connection, kind, owner)

    def _owned(self, connection: Connection, kind: OwnerKind, owner: str) -> int:
        where = (folders.c.owner_kind == kind.value, folders.c.owner == owner)
        there = (folders.c.cluster == self._cluster, folders.c.state != _GONE)
        return int(connection.execute(select(func.count()).select_from(folders).where(*there, *where)).scalar() or 0)

    def every(self, words: str = "", after: str = "", limit: int = 0) -> list[WithMembers]:
        """Return all folders in whose name, description, licence or owner all words are, by name.

        Args:
            after: only those with a later name. limit: how many, 0 = all.
        """
        return self._find(*_has_words(words), folders.c.name > after, limit=limit)

    def unfinished(self) -> list[WithMembers]:
        """Return the folders with something that may have to be applied: all that are not simply there."""
        applied = select(members.c.folder).where(members.c.applied != "", members.c.state != "accepted")
        waits = select(members.c.folder).where(members.c.applied == "", members.c.state == "accepted")
        changed = select(members.c.folder).where(members.c.applied != "", members.c.applied != members.c.role)
        return self._find(
            or_(
                folders.c.state.in_((FolderState.MAKING.value, FolderState.REMOVING.value)),
                folders.c.published != folders.c.published_applied,
                folders.c.spread.is_not(None),
                folders.c.problem != "",
                *(folders.c.id.in_(each) for each in (applied, waits, changed)),
            )
        )

    def with_ends(self, now: float) -> list[WithMembers]:
        """Return the folders with members whose time is over, or who came by a group or an account."""
        live = ("pending", "open", "accepted")
        over = (members.c.expires > 0, members.c.expires <= now)
        due = select(members.c.folder).where(members.c.state.in_(live), or_(members.c.via > 0, *[over[0] & over[1]]))
        return self._find(folders.c.id.in_(due))

    def of_user(
        self, user: str, groups: Collection[str], accounts: Collection[str], after: str = ""
    ) -> list[WithMembers]:
        """Return the folders that somebody owns, is a member of, or is invited to, by name, after a name."""
        own = (folders.c.owner_kind == OwnerKind.USER.value) & (folders.c.owner == user)
        of_account = (folders.c.owner_kind == OwnerKind.ACCOUNT.value) & folders.c.owner.in_(list(accounts) or [""])
        meant = [members.c.kind.in_(("user", "dataset")) & (members.c.subject == user)]
        for kind, names in ((SubjectKind.GROUP, groups), (SubjectKind.ACCOUNT, accounts)):
            if names:
                meant.append((members.c.kind == kind.value) & members.c.subject.in_(list(names)))
        invited = folders.c.id.in_(select(members.c.folder).where(or_(*meant)))
        return self._find(or_(own, of_account, invited), folders.c.name > after)

    def datasets(self, words: str = "", after: str = "", limit: int = 100) -> list[WithMembers]:
        """Return published datasets in whose name, description, licence or owner all words are, by name, after one."""
        public = (folders.c.dataset.is_(True), folders.c.published.is_(True), folders.c.name > after)
        return self._find(*public, *_has_words(words), limit=limit)

    def published(self) -> list[WithMembers]:
        """Return the folders that everybody may read, by name."""
        return self._find(folders.c.published.is_(True))

    def events(self, id: str, limit: int = 50) -> list[Event]:
        """Return what was done with a folder, the newest first."""
        wanted = select(events).where(events.c.folder == id).order_by(events.c.id.desc()).limit(limit)
        with store_errors("The folder's history cannot be read"), self._reading() as connection:
            return [Event(row.at, row.actor, row.act, row.about) for row in connection.execute(wanted)]

    def choices(self, user: str) -> dict[str, str]:
        """Return the folders that a user chose the last time, by profile."""
        where = (choices.c.cluster == self._cluster, choices.c.user == user)
        with store_errors("Choices of folders cannot be read"), self._reading() as connection:
            return {row.profile: row.value for row in connection.execute(select(choices).where(*where))}

    def _reading(self) -> Connection:
        return self._engine.connect().execution_options(**{READ_ONLY: True})

    def _find(self, *where: Any, limit: int = 0) -> list[WithMembers]:
        there = (folders.c.cluster == self._cluster, folders.c.state != _GONE)
        wanted = select(folders).where(*there, *where).order_by(folders.c.name)
        with store_errors("Folders cannot be read"), self._reading() as connection:
            found = [_folder(row) for row in connection.execute(wanted.limit(limit) if limit else wanted)]
            rows = self._members(connection, [one.id for one in found])
        return [WithMembers(one, tuple(rows.get(one.id, ()))) for one in found]

    @staticmethod
    def _members(connection: Connection, ids: Iterable[str]) -> dict[str, list[Member]]:
        found: dict[str, list[Member]] = {}
        for some in chunks(ids):
            for row in connection.execute(select(members).where(members.c.folder.in_(some)).order_by(members.c.id)):
                found.setdefault(row.folder, []).append(_member(row))
        return found


def _has_words(words: str) -> list[Any]:
    """Return the conditions that all words are in one of the texts of a folder."""
    texts = (folders.c.name, folders.c.description, folders.c.licence, folders.c.owner)
    return [
        or_(*(func.lower(column).contains(word, autoescape=True) for column in texts))
        for word in words.lower().split()[:10]
    ]


class _NameTaken(Exception):
    """The name of a new folder is another's."""


def _row(folder: Folder) -> dict[str, Any]:
    values = asdict(folder)
    spread = None if folder.spread is None else list(folder.spread)
    return {
        **values,
        "owner_kind": folder.owner_kind.value,
        "state": folder.state.value,
        "spread": spread,
        "drift": list(folder.drift),
    }


def _folder(row: Any) -> Folder:
    values: Mapping[str, Any] = row._mapping
    return Folder(
        **{
            **values,
            "owner_kind": OwnerKind(values["owner_kind"]),
            "state": FolderState(values["state"]),
            "spread": None if values["spread"] is None else tuple(values["spread"]),
            "drift": tuple(values["drift"]),
        }
    )


def _member_row(one: Member) -> dict[str, Any]:
    return {**asdict(one), "kind": one.kind.value, "state": one.state.value}


def _member(row: Any) -> Member:
    values: Mapping[str, Any] = row._mapping
    return Member(**{**values, "kind": SubjectKind(values["kind"]), "state": MemberState(values["state"])})
