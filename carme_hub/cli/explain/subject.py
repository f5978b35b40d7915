"""Which session is meant: by its id or the beginning of it, by the number of its job, or as the newest of a server."""

from __future__ import annotations

import re
from dataclasses import dataclass

from carme_hub.cli.base import UsageError

_ID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)
_BEGINNING = re.compile(r"[0-9a-f]{8}[0-9a-f-]*", re.IGNORECASE)
#: Longer numbers are the beginning of an id: Slurm's numbers of jobs have nine digits at most.
_JOB_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Subject:
    """What was named: one of ``id``, ``beginning`` (of an id), ``job`` and ``user`` with ``server``.

    A number of eight digits or more is that of a job, and may be the ``beginning`` of an id as well.
    """

    word: str
    id: str = ""
    beginning: str = ""
    job: int = 0
    user: str = ""
    server: str = ""


def subject_of(word: str) -> Subject:
    """Return what a word of the command line names.

    Raises:
        UsageError: it names nothing that can be looked up.
    """
    plain = word.strip().removeprefix("carme-")
    if _ID.fullmatch(plain):
        return Subject(word, id=plain.lower())
    if plain.isascii() and plain.isdigit() and len(plain) <= _JOB_DIGITS and int(plain):
        return Subject(word, job=int(plain), beginning=plain if _BEGINNING.fullmatch(plain) else "")
    if "/" in plain:
        user, _, server = plain.partition("/")
        if user:
            return Subject(word, user=user, server=server.strip("/"))
    elif _BEGINNING.fullmatch(plain):
        return Subject(word, beginning=plain.lower())
    raise UsageError(
        f"{word!r} names no session. Write its id or the first eight characters of it, the number of its job, "
        "or USER/SERVER (alice/ is alice's default server)"
    )
