"""The output files of a user's jobs: where they are, and parts of them, read as the user.

    place = await outputs.place(hub, "alice", target, "error")
    part = await outputs.part(hub, "alice", place, offset=-65536)

Where a file is is asked of Slurm, with whose job it is, and kept for some minutes: a page that follows a file asks for
its new lines every few seconds.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from carme_hub.domain.cluster.own_jobs.details import output_path
from carme_hub.domain.cluster.own_jobs.ended import details_of
from carme_hub.domain.cluster.own_jobs.targets import Target
from carme_hub.errors import Refused
from carme_hub.slurm.owner.ways import FileNotRead
from carme_hub.spawners.hub.shared import HubContext

#: Slurm's two streams of a job, and their names for people.
STREAMS = {"output": "Output", "error": "Error messages"}
#: Bytes of a page, of one look at what is new, and of a download; a download is read in pieces.
TAIL, NEW, DOWNLOAD, PIECE = 64 << 10, 256 << 10, 512 << 20, 8 << 20
#: Lines of a search.
MOST_LINES = 200
#: Seconds for which a place is kept, and how many are.
KEPT, MOST_PLACES = 600.0, 1000
#: What terminals take for colours and cursor movements, ECMA-48.
_CONTROL = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
)


class NoOutput(Refused):
    """There is no file to show; the message says why."""

    reason = "no-output"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a stream of a job goes.

    Attributes:
        guessed: Slurm has forgotten the job and does not keep the name: it is the one that it has by default.
        waits: the job has not started.
    """

    path: str
    name: str
    guessed: bool = False
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a file. ``inode`` is another one where the file was replaced."""

    text: str
    size: int
    offset: int
    end: int
    modified: float
    inode: int


@dataclass(frozen=True, slots=True)
class Found:
    """Lines with some words: the last ones, with where they begin; ``count`` of them in what was searched."""

    lines: Sequence[tuple[int, str]]
    count: int
    searched_from: int
    size: int


class Outputs:
    """Finds and reads output files."""

    def __init__(self) -> None:
        self._places: OrderedDict[tuple[str, Target, str], tuple[float, Place]] = OrderedDict()

    async def place(self, hub: HubContext, user: str, target: Target, stream: str) -> Place:
        """Return where a stream of a user's job goes.

        Raises:
            NoOutput: there is no such job of the user, or it has no such file. SlurmError: Slurm does not answer.
        """
        key = (user, target, stream)
        known = self._places.get(key)
        if known is not None and time.monotonic() - known[0] < KEPT:
            return known[1]
        found = await self._find(hub, user, target, stream)
        if not found.waits:
            self._places[key] = (time.monotonic(), found)
            while len(self._places) > MOST_PLACES:
                self._places.popitem(last=False)
        return found

    async def _find(self, hub: HubContext, user: str, target: Target, stream: str) -> Place:
        job = await hub.own_jobs.details(user, target)
        guessed = False
        if job is None:
            record = await hub.own_jobs.record(user, target)
            if record is None:
                raise NoOutput("There is no such job of yours.", reason="unknown")
            job, guessed = details_of(record), not record.output
        if job.array and not job.task.isdigit():
            raise NoOutput(f"Each task of an array has a file of its own. Choose one, such as {job.array}_1.")
        if not job.batch:
            raise NoOutput("It was started by srun or salloc: its output goes to the terminal in which it was started.")
        path = output_path(job, stream)
        if not path:
            raise NoOutput("It writes its output to no file (/dev/null).")
        return Place(path, job.name, guessed, job.state == "PENDING")

    async def part(self, hub: HubContext, user: str, place: Place, *, offset: int, length: int = TAIL) -> Part:
        """Return a part of a file, from an offset; a negative one counts from its end.

        Raises:
            NoOutput: it cannot be read. SlurmError: the helper does not answer.
        """
        about, raw = await _read(hub, user, place, {"offset": offset, "length": length})
        begin = int(about["offset"])
        if begin and offset < 0:  # the first line is cut
            cut = raw.find(b"\n") + 1
            raw, begin = raw[cut:], begin + cut
        end = begin + len(raw)
        text = raw.decode("utf-8", "replace")
        return Part(plain(text), int(about["size"]), begin, end, float(about["modified"]), int(about["inode"]))

    async def find(self, hub: HubContext, user: str, place: Place, words: str) -> Found:
        """Return the last lines with some words, in any case."""
        about, _ = await _read(hub, user, place, {"find": words, "most": MOST_LINES})
        lines = [(int(line["at"]), plain(str(line["text"]))) for line in about["lines"]]
        return Found(lines, int(about["count"]), int(about["searched_from"]), int(about["size"]))

    async def pieces(self, hub: HubContext, user: str, place: Place) -> AsyncIterator[bytes]:
        """Yield a file piece by piece, at most DOWNLOAD bytes.

        Raises:
            NoOutput: it cannot be read, or was replaced meanwhile. SlurmError: the helper does not answer.
        """
        offset, inode = 0, 0
        while offset < DOWNLOAD:
            about, raw = await _read(hub, user, place, {"offset": offset, "length": PIECE})
            if inode and about["inode"] != inode:
                raise NoOutput("The file was replaced meanwhile. Download it again.", reason="replaced")
            if not raw:
                return
            inode, offset = int(about["inode"]), offset + len(raw)
            yield raw


async def _read(hub: HubContext, user: str, place: Place, asked: Mapping[str, object]) -> tuple[dict[str, Any], bytes]:
    try:
        return await hub.own_jobs.file(user, {"path": place.path, **asked})
    except FileNotRead as error:
        raise NoOutput(why_not_read(error, place), reason=error.reason) from error


def why_not_read(error: FileNotRead, place: Place) -> str:
    """Return why a file is not shown, and what to do."""
    sentences = {
        "missing": (
            f"{place.path} is not there"
            + (
                " yet: the job has not started."
                if place.waits
                else ", as seen from the hub: the job has written nothing "
                "yet, the file was moved, or its folder is on the compute node alone."
            )
            + (" Slurm does not keep the names of files; that is the one it has by default." if place.guessed else "")
        ),
        "denied": f"You may not read {place.path} from here.",
        "not-regular": f"{place.path} is no regular file, so it is not shown here.",
        "no-helper": (
            f"This hub cannot read files of users (an administrator may set CarmeSlurm.jobs_command). "
            f"In a terminal: less {place.path}"
        ),
    }
    return sentences.get(error.reason, f"{place.path} cannot be read: {error.message}.")


def plain(text: str) -> str:
    """Return text without colours, other control sequences, and what a progress bar has overwritten."""
    lines = _CONTROL.sub("", text.replace("\r\n", "\n")).split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)
