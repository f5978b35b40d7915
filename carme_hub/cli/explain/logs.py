"""Log records about a session: from files that are named, and from the journal's units. Secrets are taken out."""

from __future__ import annotations

import gzip
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import tzinfo
from io import BufferedIOBase
from pathlib import Path

from carme_hub.domain.support.redaction import Redactor
from carme_hub.domain.timeline.lines import LOG, Line, Rank
from carme_hub.domain.timeline.log_lines import LogRecord, Marks, concerns, log_line, records
from carme_hub.errors import CarmeError
from carme_hub.slurm.command import Commands

#: What a record may begin with: a bracket, a JSON object, a date, a colour.
_BEGINNINGS = frozenset("[{0123456789\x1b")


@contextmanager
def log_file(file: Path) -> Iterator[BufferedIOBase]:
    """Open a log file, packed (.gz) or not.

    Raises:
        OSError: it cannot be read. CarmeError: it is packed, and damaged or not complete yet.
    """
    try:
        with gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as opened:
            yield opened
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CarmeError(f"{file} is damaged, or is being packed: {error}") from error


def from_file(file: Path, marks: Marks, zone: tzinfo, most: int) -> list[Line]:
    """Return the records of a log file, packed or not, about a session; the newest ``most`` of them.

    Raises:
        OSError, CarmeError: it cannot be read.
    """
    with log_file(file) as opened:
        lines = (line.decode("utf-8", "replace") for line in opened)
        return chosen(records(near(lines, marks.quick()), zone), marks, str(file), most)


async def from_journal(commands: Commands, unit: str, marks: Marks, zone: tzinfo, most: int) -> list[Line]:
    """Return the records of a systemd unit about a session, as its program has printed them.

    Raises:
        SlurmUnreachable: journalctl did not answer. CarmeError: it failed, or has nothing that this user may read.
    """
    when = [f"--since=@{marks.since:.0f}", f"--until=@{marks.until:.0f}"] if marks.until else []
    argv = ["journalctl", f"--unit={unit}", "--no-pager", "--output=cat", *when]
    lines = (await journal(commands, argv)).splitlines(keepends=True)
    return chosen(records(near(lines, marks.quick()), zone), marks, unit, most)


async def journal(commands: Commands, argv: list[str]) -> str:
    """Return what journalctl prints, without ``--quiet``: it exits with 0, too, where the user may not read a unit's.

    Raises:
        SlurmUnreachable: journalctl did not answer. CarmeError: it failed, or has nothing that this user may read.
    """
    answer = await commands.run(argv, timeout=60.0)
    if answer.code != 0:
        raise CarmeError(answer.message)
    if "not seeing messages from other users" in answer.err:
        raise CarmeError("this user may not read it: add the user to the group systemd-journal")
    if not answer.out.strip() or answer.out.startswith("-- No entries --"):
        raise CarmeError("it has no entry of that time: is that the unit's name?")
    return answer.out


def near(lines: Iterable[str], words: tuple[str, ...]) -> Iterator[str]:
    """Yield lines with one of the words, with the beginning and the rest of their records: most of a log is others'."""
    head, wanted = "", False
    for line in lines:
        begins = line[:1] in _BEGINNINGS
        if begins:
            head, wanted = line, False
        if wanted:
            yield line
        elif any(word in line for word in words):
            if not begins and head:
                yield head
            yield line
            wanted = True


def chosen(found: Iterable[LogRecord], marks: Marks, name: str, most: int) -> list[Line]:
    """Return the newest records about a session as lines, and a line about those that are left out."""
    redactor = Redactor()
    kept: deque[Line] = deque(maxlen=most)
    count = 0
    for record in found:
        if concerns(record, marks):
            line = log_line(record, name)
            kept.append(Line(line.at, line.source, redactor.text(line.text), line.rank, line.about))
            count += 1
    lines = list(kept)
    if count > len(lines):
        text = f"{count - len(lines)} earlier records in {name} are left out; --log-lines shows more."
        lines.append(Line(lines[0].at if lines else 0.0, LOG, text, Rank.ASKED, {"event": "left-out", "file": name}))
    return lines
