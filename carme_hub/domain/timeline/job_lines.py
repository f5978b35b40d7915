"""Lines of what Slurm says of a session's job: the queue now, and accounting's record of each incarnation. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import tzinfo

from carme_hub.domain.cluster.history import PastJob, PastStep
from carme_hub.domain.cluster.jobs import Job, JobRecord, Phase
from carme_hub.domain.cluster.reasons import end_sentence, waiting_sentence
from carme_hub.domain.wording import duration

from .lines import ACCOUNTING, QUEUE, Line, Rank

#: Steps of one job that are shown: the batch script, what failed, and the first others.
MOST_STEPS = 20


def queue_lines(jobs: Sequence[Job], now: float, zone: tzinfo) -> Iterator[Line]:
    """Yield what the queue shows now, as of ``now``; a terminal job stays in it for a few minutes."""
    for job in jobs:
        about = {"event": "queue", "job": job.id, "state": job.state, "reason": job.reason, "nodes": list(job.nodes)}
        yield Line(now, QUEUE, f"Job {job.id} is {job.state}: {queue_words(job, now, zone)}", Rank.SETTLED, about)


def queue_words(job: Job, now: float, zone: tzinfo) -> str:
    """Return what the queue says of one job, as a sentence."""
    if job.phase is Phase.WAITING:
        return f"{waiting_sentence(job, None, now, zone)}."
    if job.phase is Phase.TERMINAL:
        return end_sentence(job.state, job.exit_code)
    where = f"on {', '.join(job.nodes)}" if job.nodes else "on a node that is not known"
    if job.phase is Phase.ENDING:
        return f"it is ending {where}."
    for_how_long = f" for {duration(int(now - job.start) // 60 * 60)}" if 60 <= now - job.start < now else ""
    return f"it is {where}{for_how_long}."


def past_lines(past: Sequence[PastJob]) -> Iterator[Line]:
    """Yield the life of each incarnation as accounting has it."""
    for number, each in enumerate(past, 1):
        yield from _incarnation(each, f"Incarnation {number} of {len(past)}: job" if len(past) > 1 else "Job")


def _incarnation(past: PastJob, name: str) -> Iterator[Line]:
    job = past.record
    about = {"job": job.id, "state": job.state}
    where = {"account": job.account, "partition": past.partition, "QOS": past.qos}
    named = ", ".join(f"{what} {value}" for what, value in where.items() if value)
    text = f"{name} {job.id} of {job.user} was submitted{f' ({named})' if named else ''}."
    yield Line(job.submitted, ACCOUNTING, text, Rank.SUBMITTED, {"event": "job-submitted", **about})
    if job.start:
        waited = f" after waiting {duration(int(job.start - job.submitted))}" if job.start > job.submitted else ""
        text = f"{name} {job.id} started on {nodes_of(job)}{waited}."
        yield Line(
            job.start, ACCOUNTING, text, Rank.STARTED, {"event": "job-started", "nodes": list(job.nodes), **about}
        )
    if job.end and job.phase is Phase.TERMINAL:
        ran = f" after {duration(int(job.end - job.start))}" if job.start and job.end > job.start else ""
        text = f"{name} {job.id} ended as {job.state}{ran}{_exit(job.exit_code)}: {record_words(job)}"
        code = list(job.exit_code) if job.exit_code else None
        yield Line(job.end, ACCOUNTING, text, Rank.ENDED, {"event": "job-ended", "exit": code, **about})
    for step in _shown(past.steps):
        yield _step(job.id, step)
    if len(past.steps) > MOST_STEPS:
        text = f"Job {job.id} had {len(past.steps)} steps; {MOST_STEPS} of them are shown, those that failed first."
        yield Line(job.end, ACCOUNTING, text, Rank.SETTLED, {"event": "steps", "steps": len(past.steps)})


def record_words(job: JobRecord) -> str:
    """Return how accounting says that a job ended."""
    if job.phase is Phase.TERMINAL and not job.start and not job.state.startswith("CANCELLED"):
        return f"it never started. {end_sentence(job.state, job.exit_code)}"
    return end_sentence(job.state, job.exit_code)


def nodes_of(job: JobRecord) -> str:
    """Return the nodes of a job as words."""
    return ", ".join(job.nodes) or "a node that is not known"


def _shown(steps: Sequence[PastStep]) -> list[PastStep]:
    ordered = sorted(steps, key=lambda step: (step.state in ("COMPLETED", "RUNNING"), step.id != "batch"))
    chosen = ordered[:MOST_STEPS]
    return [step for step in steps if step in chosen]


def _step(job: int, step: PastStep) -> Line:
    where = f" on {', '.join(step.nodes)}" if step.nodes else ""
    text = f"Step {job}.{step.id}{where} is {step.state}{_exit(step.exit_code)}."
    about = {"event": "step", "job": job, "step": step.id, "state": step.state}
    about["exit"] = list(step.exit_code) if step.exit_code else None
    return Line(step.end or step.start, ACCOUNTING, text, Rank.ENDED if step.end else Rank.DURING, about)


def _exit(code: tuple[int, int] | None) -> str:
    if not code or not any(code):
        return ""
    status, signal = code
    return f", signal {signal}" if signal else f", exit status {status}"
