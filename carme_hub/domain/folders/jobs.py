"""Jobs that look at a folder as one of its members: how much is in it, or whether its checksums hold. Pure.

A job says how far it is, and at its end what it has found. Its word counts as that of who started it, who manages the
folder; nobody else's rights depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from carme_hub.domain.disk_use import size

from .folder import Folder
from .rules import Actor, FolderRefused, require_manager, require_there

#: What is counted of a list of checksums besides what is as it should be, in the order in which it is told: of a file,
#: and of several.
FAULTS = {
    "differs": ("differs", "differ"),
    "missing": ("is missing", "are missing"),
    "unreadable": ("cannot be read", "cannot be read"),
    "outside": ("leads out of the folder", "lead out of the folder"),
}
#: Jobs of one user that have not ended.
MOST_LIVE = 4


class JobKind(Enum):
    """What a job does."""

    MEASURE = "measure"
    VERIFY = "verify"


class JobState(Enum):
    """ASKED until Slurm has it, WAITING until it reports. DONE: it has said what it found. FAILED: it never will."""

    ASKED = "asked"
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


LIVE = (JobState.ASKED, JobState.WAITING, JobState.RUNNING)


@dataclass(frozen=True, slots=True)
class FolderJob:
    """One job. Times are UTC epoch seconds, 0 = not yet.

    Attributes:
        id: a UUID, in the job's name. user: who started it, and as whom it runs. slurm_id: 0 = not known.
        progress: ``files``, ``total_files``, ``bytes``, ``total_bytes`` as it last reported them.
        result: of a measurement as ``carme_hub.files.measure`` gives it; of a verification the counts of ``FAULTS``,
            ``files``, ``verified``, ``bad_lines``, ``unlisted`` (None = not counted), ``bytes``, ``complete``,
            ``names`` of some by fault, and ``digest``, the SHA-256 of the list itself.
        about: the file of checksums. problem: why there is no result.
    """

    id: str
    folder: str
    kind: JobKind
    user: str
    asked: float
    state: JobState = JobState.ASKED
    nonce_hash: str = ""
    slurm_id: int = 0
    reported: float = 0.0
    ended: float = 0.0
    about: str = ""
    problem: str = ""
    progress: Mapping[str, int] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_live(self) -> bool:
        """Whether a result may still come."""
        return self.state in LIVE

    def replace(self, **changes: Any) -> FolderJob:
        """Return a copy with changes."""
        return replace(self, **changes)


def require_start(folder: Folder, kind: JobKind, actor: Actor, role: str) -> None:
    """Refuse a job that would find nothing.

    Args:
        role: what the actor may do with the files.
    """
    require_there(folder)
    require_manager(folder, actor)
    if not role and not folder.published:
        raise FolderRefused(
            f"The job runs as {actor.name}, who cannot read the folder. Let a member who manages it start it."
        )
    if kind is JobKind.VERIFY and not folder.checksums:
        raise FolderRefused("Name the file of checksums in the description of the folder first, such as SHA256SUMS.")


def day(at: float) -> str:
    """Return a time as people read it, in UTC: ``2026-11-28``."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d}"


def verified_sentence(job: FolderJob) -> str:
    """Return what a verification has found: ``verified 2026-11-28: of 1,204 files 3 differ``."""
    found = job.result
    files, checked = int(found.get("files", 0)), int(found.get("verified", 0))
    faults = [(int(found.get(name, 0)), words) for name, words in FAULTS.items()]
    wrong = [f"{count:,} {words[count != 1]}" for count, words in faults if count]
    if wrong:
        said = [f"of {files:,} {'file' if files == 1 else 'files'} {', '.join(wrong)}"]
    elif not found.get("complete", False):
        said = [f"{checked:,} of {files:,} files are as listed"]
    else:
        every = "its file is" if files == 1 else f"all {files:,} files are"
        said = [f"{every} as listed"] if files else ["the list names no file"]
    if bad := int(found.get("bad_lines", 0)):
        said.append(f"{bad:,} {'line is no checksum' if bad == 1 else 'lines are no checksums'}")
    if more := int(found.get("unlisted") or 0):
        said.append(f"{more:,} {'file is' if more == 1 else 'files are'} not in the list")
    if not found.get("complete", False):
        said.append("not finished")
    return f"verified {day(job.ended)}: {'; '.join(said)}"


def names_of(job: FolderJob) -> list[str]:
    """Return files that are not as listed, each with what is wrong with it."""
    names = job.result.get("names", {})
    return [f"{name} ({words[0]})" for fault, words in FAULTS.items() for name in names.get(fault, ())]


def progress_sentence(job: FolderJob) -> str:
    """Return how far a live job is."""
    if job.state is JobState.ASKED:
        return "is being submitted"
    if job.state is JobState.WAITING:
        return "waits in Slurm's queue" + (f" as job {job.slurm_id}" if job.slurm_id else "")
    files, every = job.progress.get("files", 0), job.progress.get("total_files", 0)
    done, total = job.progress.get("bytes", 0), job.progress.get("total_bytes", 0)
    if not files and not every:
        return "runs"
    of_files = f" of {every:,}" if every else ""
    of_bytes = f", {size(done)} of {size(total)}" if total else f", {size(done)}" if done else ""
    return f"runs: {files:,}{of_files} files{of_bytes}"


def newest(jobs: Sequence[FolderJob], kind: JobKind, *states: JobState) -> FolderJob | None:
    """Return the newest job of a kind in one of the states, None where there is none."""
    found = [one for one in jobs if one.kind is kind and one.state in states]
    return max(found, key=lambda one: one.asked, default=None)
