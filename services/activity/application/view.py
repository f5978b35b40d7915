"""Finished jobs and sums of unused time as pages show them. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from carme_hub.domain import wording
from carme_hub.domain.activity.finished import REPORTER, FinishedJob, Unused
from carme_hub.services.activity.application.advice import AccountUnused, Advised

#: Size of a trend in units of its SVG.
WIDTH, HEIGHT = 120, 24
HOUR = 3600
UNKNOWN, NO_ACCOUNT = "not known", "(none)"


@dataclass(frozen=True, slots=True)
class Row:
    """A job of a list: ``when`` it ended, ``iso``: likewise for programs."""

    what: str
    number: str
    account: str
    state: str
    when: str
    iso: str
    ran: str
    line: str
    suggestion: str
    note: str


@dataclass(frozen=True, slots=True)
class Sums:
    """GPU-hours, CPU-hours and GiB-hours as texts: ``all``, ``unused`` (with its share) and ``unknown``."""

    all: str
    unused: str
    unknown: str


@dataclass(frozen=True, slots=True)
class UnusedRow:
    """An account, or a week. ``busy``: how busy its GPUs were on average. ``line``, ``words``: the trend."""

    name: str
    jobs: int
    gpu: Sums
    cpu: Sums
    memory: Sums
    busy: str
    line: str = ""
    words: str = ""


def job_row(each: Advised) -> Row:
    """Return a job for a list."""
    job, said = each.job, each.said
    return Row(
        what=title(job),
        number=job.shown_id or str(job.job_id),
        account=job.account,
        state=job.state.replace("_", " ").lower(),
        when=clock(job.ended),
        iso=datetime.fromtimestamp(job.ended, UTC).isoformat(timespec="seconds"),
        ran=wording.duration(int(job.seconds) if job.seconds < 600 else round(job.seconds / 60) * 60),
        line=said.line,
        suggestion=said.suggestion,
        note=said.note,
    )


def title(job: FinishedJob) -> str:
    """Return what a job was."""
    if not job.session:
        return job.name or "Job"
    if not job.interactive:
        return f"Batch job {job.name}"
    return f"Server “{job.name}”" if job.name else "Session"


def measured_by(job: FinishedJob) -> str:
    """Return who measured a job, for people."""
    return "measured in the job" if job.source == REPORTER else "from Slurm's accounting"


def account_row(one: AccountUnused) -> UnusedRow:
    """Return an account with the trend of its unused GPU time."""
    points = [share(week.gpu_unused, week.gpu - week.gpu_unknown) for _, week in one.weeks]
    return row_of(one.account or NO_ACCOUNT, one.total, trend(points), trend_words(points))


def week_rows(one: AccountUnused) -> list[UnusedRow]:
    """Return the weeks of an account, the newest first."""
    return [row_of(day(week), of) for week, of in reversed(one.weeks)]


def row_of(name: str, of: Unused, line: str = "", words: str = "") -> UnusedRow:
    """Return a row of sums."""
    busy = share(of.gpu_busy, of.gpu_measured)
    return UnusedRow(
        name=name,
        jobs=of.jobs,
        gpu=_sums(of.gpu, of.gpu_unused, of.gpu_unknown),
        cpu=_sums(of.cpu, of.cpu_unused, of.cpu_unknown),
        memory=_sums(of.memory, of.memory_unused, of.memory_unknown),
        busy="–" if busy is None else f"{100 * busy:.0f} %",
        line=line,
        words=words,
    )


def _sums(every: int, unused: int, unknown: int) -> Sums:
    """Return sums as texts; the share is that of what is known."""
    if not every:
        return Sums("–", "–", "–")
    of_known = share(unused, every - unknown)
    said = UNKNOWN if of_known is None else f"{hours(unused)} ({100 * of_known:.0f} %)"
    return Sums(hours(every), said, hours(unknown) if unknown else "0")


def hours(seconds: int) -> str:
    """Return seconds as hours: one digit after the point where there are few."""
    value = seconds / HOUR
    return f"{value:.1f}" if 0 < value < 100 else f"{value:,.0f}"


def share(part: int, whole: int) -> float | None:
    """Return a part of a whole; None where there is none."""
    return part / whole if whole > 0 else None


def trend(points: Sequence[float | None]) -> str:
    """Return the shares of weeks as the points of an SVG polyline; weeks of which nothing is known are left out."""
    step = WIDTH / max(1, len(points) - 1)
    known = [
        (n * step, HEIGHT - 1 - (HEIGHT - 2) * min(1.0, each)) for n, each in enumerate(points) if each is not None
    ]
    if len(known) == 1:
        known.append((known[0][0] + 1, known[0][1]))
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in known)


def trend_words(points: Iterable[float | None]) -> str:
    """Return what the trend shows, for who does not see it."""
    known = [each for each in points if each is not None]
    if not known:
        return "Nothing is known of these weeks"
    if len(known) == 1:
        return f"Unused: {100 * known[0]:.0f} % of the GPU time that is known"
    return f"Unused: from {100 * known[0]:.0f} % to {100 * known[-1]:.0f} % of the GPU time that is known"


def clock(at: float) -> str:
    """Return "21 Nov 2026, 14:05" in this machine's zone."""
    when = datetime.fromtimestamp(at).astimezone()
    return f"{day(at, utc=False)}, {when:%H:%M}"


def day(at: float, *, utc: bool = True) -> str:
    """Return "21 Nov 2026"."""
    when = datetime.fromtimestamp(at, UTC) if utc else datetime.fromtimestamp(at).astimezone()
    return f"{when.day} {wording.day(when).split(' ')[1][:3]} {when.year}"
