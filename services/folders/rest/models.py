"""What the REST interface of folders takes and answers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, StringConstraints

from carme_hub.services.fields import Moment, NamePageQuery, Query, RequestBody

ID = r"^[a-z0-9][a-z0-9._-]{1,62}$"
Subject = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=255)]
Role = Literal["ro", "rw"]
_Text = Annotated[str, Field(max_length=4000)]


class CreateIn(RequestBody):
    """A new folder: the caller's, or with ``account`` that of an account which the caller coordinates.

    ``root``: where it is made; "" = the first of the site's roots.
    """

    name: Annotated[str, Field(max_length=63)]
    account: Annotated[str, Field(max_length=255)] = ""
    root: Annotated[str, Field(max_length=32)] = ""
    description: _Text = ""


class DescribeIn(RequestBody):
    """Changes of what is said of a folder; null or left out = as it is.

    ``dataset``: read-only for all but its writers. ``published``: everybody may read it; it needs a description and a
    licence. ``checksums``: path in the folder of a file with the checksums of the others.
    """

    description: _Text | None = None
    licence: Annotated[str, Field(max_length=200)] | None = None
    checksums: Annotated[str, Field(max_length=200)] | None = None
    dataset: bool | None = None
    published: bool | None = None


class InviteIn(RequestBody):
    """Who is invited. ``expires``: when the access ends; null = never."""

    kind: Literal["user", "group", "account"]
    subject: Subject
    role: Role = "ro"
    expires: Moment | None = None


class AnswerIn(RequestBody):
    """An answer to an invitation. ``invitation``: its id; 0 = the first one that the caller can answer."""

    accepted: bool
    invitation: Annotated[int, Field(ge=0)] = 0


class HandoverIn(RequestBody):
    """``to``: the member who may become the owner; "" = nobody any more."""

    to: Annotated[str, Field(max_length=255)]


class HandoverAnswerIn(RequestBody):
    """The answer of who is offered a folder."""

    accepted: bool


class DeleteQuery(Query):
    """``name``: the folder's name once more, as a confirmation."""

    name: Annotated[str, Field(max_length=63)]


class DatasetsQuery(NamePageQuery):
    """``words``: of the name, the description, the licence or the owner; all of them must be there."""

    words: Annotated[str, Field(max_length=200)] = ""


class ListQuery(NamePageQuery):
    """``all``: everybody's folders, for administrators."""

    all: bool = False


class MemberOut(BaseModel):
    """A member or an invitation. ``via``: id of the group's or account's invitation by which a user came, 0 = own.

    ``on_disk``: what the file system was last told.
    """

    id: int
    kind: str
    subject: str
    role: str
    state: str
    invited_by: str
    invited: int
    answered: int
    expires: int
    via: int
    on_disk: str


class FolderOut(BaseModel):
    """A folder. ``my_role``: owner, rw, ro or "" (invited, or a manager without access). ``place``: in sessions.

    ``path``: on the cluster. ``handover``: to whom it is offered. ``problem``: why something is not applied yet.
    ``drift``: what was changed by hand. ``verified``: what the last comparison with its checksums has found.
    ``warnings``: how full it is, as far as that is known without asking (``GET folders/{id}/disk`` asks).
    """

    id: str
    name: str
    owner_kind: str
    owner: str
    state: str
    place: str
    path: str
    description: str
    licence: str
    checksums: str
    dataset: bool
    published: bool
    created: int
    my_role: str
    managed: bool
    invitations: list[int]
    handover: str
    problem: str
    drift: list[str]
    verified: str
    warnings: list[str]
    members: list[MemberOut]


class FoldersOut(BaseModel):
    """A page of folders by name; ``next`` is the cursor of the following page, "" at the end."""

    folders: list[FolderOut]
    next: str


class PlaceOut(BaseModel):
    """How full something is: the folder by its quota, or as a job has counted it (``measured``), or (``shared``) the
    whole file system. null: no limit, or not known. ``full_in_seconds``: at its growth."""

    path: str
    used_bytes: int
    limit_bytes: int | None
    soft_bytes: int | None
    grace_ends: float | None
    files: int | None
    file_limit: int | None
    shared: bool
    percent: int
    growth_bytes_per_day: int | None
    full_in_seconds: int | None
    warning: str
    measured: float | None


class LargeFolderOut(BaseModel):
    """A folder in it, with all that is below."""

    path: str
    bytes: int
    files: int


class JobOut(BaseModel):
    """A job that looks at the folder. ``state``: asked, waiting, running, done, failed; ``said``: that as a sentence.

    ``user``: who started it, and as whom it runs. ``job``: its number in Slurm, 0 = not known. ``problem``: why it has
    no result.
    """

    kind: str
    state: str
    said: str
    user: str
    job: int
    asked: int
    ended: int
    files: int
    total_files: int
    bytes: int
    total_bytes: int
    problem: str


class DiskOut(BaseModel):
    """How full a folder is. ``places``: null where no answer came. ``measured``: when a job has counted, 0 = never.

    ``folders``: the largest ones, ``complete``: nothing was left out, both of that count; ``job``: the newest one.
    """

    places: list[PlaceOut] | None
    measured: int
    complete: bool
    folders: list[LargeFolderOut]
    job: JobOut | None


class VerificationOut(BaseModel):
    """What the last comparison with the file of checksums has found; ``job``: the newest one.

    ``names``: of some files that are not as listed, by fault. ``unlisted``: files beside those of the list, null = not
    counted. ``digest``: SHA-256 of the list then. ``complete``: the job came to its end.
    """

    said: str
    checksums: str
    ended: int
    by: str
    files: int
    verified: int
    differs: int
    missing: int
    unreadable: int
    outside: int
    bad_lines: int
    unlisted: int | None
    bytes: int
    complete: bool
    names: dict[str, list[str]]
    digest: str
    job: JobOut | None


class SessionOut(BaseModel):
    """A session that has the folder. ``lost``: its user's access has ended or is less since."""

    session: str
    user: str
    server_name: str
    mode: str
    created: int
    lost: bool


class SessionsOut(BaseModel):
    """Sessions, the oldest first."""

    sessions: list[SessionOut]


class FilesOut(BaseModel):
    """Counts of what is in a folder. ``unusable``: what members cannot use, by the number of its owner; ``names``: some
    of it. ``hard_links``: files with a second name, which are not touched. ``mended``: by this call."""

    files: int
    folders: int
    links: int
    hard_links: int
    strange: int
    too_deep: int
    errors: int
    mended: int
    unusable: dict[str, int]
    names: list[str]


class EventOut(BaseModel):
    """What was done with a folder."""

    at: int
    actor: str
    act: str
    about: str


class EventsOut(BaseModel):
    """Events, the newest first."""

    events: list[EventOut]


class HealthOut(BaseModel):
    """How the folders are kept. ``compared``: when all were last compared with the file system, 0 = not yet.

    ``not_applied``: names of folders with something that is not applied yet, ``drifted``: that were changed by hand;
    ``unknown_on_disk``: ids on disk that no folder has, by root.
    """

    compared: int
    problem: str
    folders: int
    not_applied: list[str]
    drifted: list[str]
    unknown_on_disk: dict[str, list[str]]
