"""Lines of what the database has of a session: its row, its companions, its idle events, and what it used. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from carme_hub.domain.activity.advice import advice
from carme_hub.domain.activity.efficiency import gib
from carme_hub.domain.activity.finished import FinishedJob
from carme_hub.domain.activity.minutes import Total
from carme_hub.domain.sessions.session import Request, Session
from carme_hub.domain.wording import duration

from .lines import ACTIVITY, ADMINISTRATION, DATABASE, IDLE, MESSAGES, Line, Rank

#: Values of a row that no story needs: they prove who somebody is.
_NOT_TOLD = ("nonce_hash", "token_id", "certificate")
_IDLE_EVENTS = {
    "here": "Its user said: I am still here.",
    "told": "Its user was told how it ended.",
    "ending": "It was idle for too long: its server is asked to put things in order.",
    "kept": "It goes on: its server said that something is at work.",
}


def session_json(session: Session) -> dict[str, Any]:
    """Return a row for programs, without what proves who somebody is."""
    values = {name: value for name, value in asdict(session).items() if name not in _NOT_TOLD}
    return {**values, "state": session.state.value}


def asked(request: Request) -> str:
    """Return what a session asked for: ``1 × a100, 4 CPUs, 16 GiB for 1 h (profile a100, image default)``."""
    what = [str(request.gpus), f"{request.cpus} CPU{'' if request.cpus == 1 else 's'}", gib(request.memory_mib)]
    if request.nodes > 1:
        what.append(f"on {request.nodes} nodes")
    about = {"profile": request.profile, "image": request.image, "account": request.account}
    about |= {"image digest": request.image_digest}
    about |= {"partition": request.partition, "QOS": request.qos, "reservation": request.reservation}
    about |= {"only on node": request.node, "working folder": request.working_folder}
    named = ", ".join(f"{name} {value}" for name, value in about.items() if value)
    return f"{', '.join(what)} for {duration(60 * request.time_limit)}{f' ({named})' if named else ''}"


def exit_words(status: int) -> str:
    """Return an exit status in words; 128 + n is signal n."""
    return f"ended by signal {status - 128}" if status > 128 else f"exit status {status}"


def session_lines(session: Session) -> Iterator[Line]:
    """Yield the changes of a session that its row has a time of."""
    row = DATABASE
    text = f"{session.user} asked for {asked(session.request)}."
    yield Line(session.created, row, text, Rank.ASKED, {"event": "asked", "session": session.id})
    if session.job_id:
        text = f"Slurm took it as job {session.job_id}."
        yield Line(session.submitted, row, text, Rank.SUBMITTED, {"event": "submitted", "job": session.job_id})
    if session.saved:
        text = "Slurm's controller has saved the job; no crash of it can lose the job from here on."
        yield Line(session.saved, row, text, Rank.DURING, {"event": "saved"})
    if session.started:
        where = f"on {session.node or 'a node that is not known'}"
        text = f"Its job runs {where}." if session.parent else f"Its server reported {where}, port {session.port}."
        about = {"event": "started", "node": session.node, "port": session.port}
        yield Line(session.started, row, text, Rank.DURING, about)
    if session.server_ended:
        text = f"The server ended, {exit_words(session.server_exit)}, as its job reported."
        about = {"event": "server-ended", "exit": session.server_exit}
        yield Line(session.server_ended, row, text, Rank.ENDED, about)
    if session.cancel_wanted:
        text = f"Its end was asked for: {session.cancel_reason or 'no reason is stored.'}"
        yield Line(session.cancel_wanted, row, text, Rank.DURING, {"event": "cancel-wanted"})
    if session.ended:
        text = f"The session was closed: {session.end_reason or 'no reason is stored.'}"
        yield Line(session.ended, row, text, Rank.ENDED, {"event": "ended"})


def companion_lines(companions: Iterable[Session]) -> Iterator[Line]:
    """Yield when each companion or batch job of a session began and ended."""
    for each in companions:
        kind = "batch job" if each.request.batch else "companion"
        name = f"The {kind} {each.id}"
        about = {"session": each.id, "job": each.job_id}
        job = f", job {each.job_id}" if each.job_id else ""
        text = f"{name} was asked for{job}: {asked(each.request)}."
        yield Line(each.created, DATABASE, text, Rank.ASKED, {"event": "companion-asked", **about})
        if each.started:
            text = f"{name} runs on {each.node}."
            yield Line(each.started, DATABASE, text, Rank.DURING, {"event": "companion-started", **about})
        if each.ended:
            text = f"{name} ended: {each.end_reason or 'no reason is stored.'}"
            yield Line(each.ended, DATABASE, text, Rank.ENDED, {"event": "companion-ended", **about})


def idle_line(at: float, kind: str, seconds: int, about: Mapping[str, Any]) -> Line:
    """Return an event of the rules on idle sessions (``store.idle``)."""
    text = _IDLE_EVENTS.get(kind, f"An event: {kind}.")
    if kind == "warned":
        text = f"Its user was warned: it is idle, and ends in {duration(seconds)}."
    elif kind == "ended":
        text = f"The rules on idle sessions ended it: {about.get('reason') or about.get('action') or ''}".rstrip(": ")
    return Line(at, IDLE, text, Rank.DURING, {"event": f"idle-{kind}", **about})


def message_line(at: float, kind: str, actor: str, text: str, seen: float = 0.0) -> Line:
    """Return a message, an announcement or a notice that its user got; ``seen``: when it was seen, 0 = it was not."""
    said = {"message": "wrote to its user", "notice": "told its user"}.get(kind, f"showed everybody, as {kind}")
    return Line(at, MESSAGES, f"{actor} {said}: {text}", Rank.DURING, {"event": kind, "seen": seen or None})


def act_line(at: float, actor: str, action: str, target: str, reason: str, outcome: str) -> Line:
    """Return what an administrator did."""
    text = f"{actor}: {action} of {target}: {reason} ({outcome or 'it is not known what came of it'})"
    return Line(at, ADMINISTRATION, text, Rank.DURING, {"event": action, "actor": actor})


def use_line(node: str, at: float, total: Total) -> Line:
    """Return what it used on one node, as its reporter measured it until its last minute."""
    parts = []
    for number, gpu in enumerate(total.gpus):
        mean = "not known" if gpu.utilisation is None else f"{gpu.utilisation:.0f} %"
        errors = f", errors of the driver {', '.join(sorted(gpu.xids))}" if gpu.xids else ""
        parts.append(f"GPU {number} busy {mean}{errors}")
    parts.append("CPUs not known" if total.cpus is None else f"{total.cpus:.1f} CPUs")
    parts.append("memory not known" if total.memory is None else f"{gib(total.memory)} of memory at most")
    text = f"It used on {node}, on average: {', '.join(parts)}; measured for {duration(total.seconds)}."
    return Line(at, ACTIVITY, text, Rank.DURING, {"event": "use", "node": node, "seconds": total.seconds})


def finished_line(job: FinishedJob) -> Line:
    """Return what is known of a job that has ended: what it asked for and used."""
    text = f"Job {job.job_id} ended as {job.state}. {advice(job).line}".rstrip()
    return Line(job.ended, ACTIVITY, text, Rank.SETTLED, {"event": "finished", "job": job.job_id, "source": job.source})
