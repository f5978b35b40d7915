"""The sessions of the home page: one card for each server that is active, and those that have ended in the last days.

Made from memory and from what the activity service has stored; nothing here asks Slurm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from types import MappingProxyType
from typing import Any

from carme_hub.domain.activity.finished import FinishedJob
from carme_hub.domain.activity.minutes import Minute
from carme_hub.domain.cluster.jobs import Job, Phase
from carme_hub.domain.ledger.entries import ONE
from carme_hub.domain.quotas.idle.rules import Action
from carme_hub.domain.sessions.session import MAINTENANCE_STOP, Request, Session, SessionState
from carme_hub.domain.wording import duration, gpu_hours
from carme_hub.errors import Refused
from carme_hub.spawners.form.durations import clock
from carme_hub.spawners.home.finished import advice_of_session, rounded
from carme_hub.spawners.home.idle_end import IdleEndNote
from carme_hub.spawners.home.runs import LiveRun, live_runs
from carme_hub.spawners.home.use import SessionUse, session_use
from carme_hub.spawners.hub.shared import HubContext
from carme_hub.spawners.progress import waiting_event
from carme_hub.spawners.session_state import refund_sentence
from carme_hub.store.activity import JobUse

#: Minutes that one click gives a session.
MORE_MINUTES = (30, 120)
#: Names of states, for people.
LABELS = {"running": "Running", "starting": "Starting", "stopping": "Stopping", "unknown": "Not known"}


@dataclass(frozen=True, slots=True)
class StoredUse:
    """What the database says of some sessions: what they use, by session, and their user's training runs.

    Attributes:
        measured: whether this hub has sessions measured at all. runs: as a session has sent them.
        idle_ends: of those that were ended as idle.
    """

    measured: bool = False
    uses: Mapping[str, Sequence[JobUse]] = field(default_factory=dict)
    minutes: Mapping[str, Mapping[str, Sequence[Minute]]] = field(default_factory=dict)
    runs: Sequence[Mapping[str, Any]] = ()
    idle_ends: Mapping[str, IdleEndNote] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Card:
    """One active server.

    Attributes:
        state: "running", "starting", "stopping" or "unknown"; said: it as a sentence. facts: names and texts.
        url: of the server, "" while it cannot be opened. progress: of its start, "" = it has started.
        time: its session and the end of its time (``SessionStatus.time_left``). more: by how much it can be
        extended with one click. spent: GPU time, as a sentence.
        again: the query of a link to the form, filled in like this session.
        runs: the trainings that go on in it. links: to pages of its server, as names and URLs.
        note: what there is to say of its use besides, such as that nothing is reported yet.
        name: what its user calls it, "" = nothing. session: its id; stops: whether it can be stopped now.
        idle: that it is idle, and what follows, as a sentence; "" = it is not, or nothing follows. warned: whether its
            user is warned. clicks: how often "still here" can be said.
    """

    server: str
    title: str
    state: str
    label: str
    said: str
    facts: tuple[tuple[str, str], ...]
    url: str = ""
    progress: str = ""
    time: Mapping[str, str] | None = None
    more: tuple[MoreTime, ...] = ()
    spent: str = ""
    use: SessionUse | None = None
    note: str = ""
    runs: tuple[LiveRun, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    again: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    session: str = ""
    stops: bool = False
    idle: str = ""
    warned: bool = False
    clicks: int = 0


@dataclass(frozen=True, slots=True)
class EndedCard:
    """A session that has ended: when, for how long it ran, why it ended, and what it used of what it had."""

    title: str
    when: str
    ran: str
    reason: str
    used: str
    suggestion: str
    facts: tuple[tuple[str, str], ...]
    again: Mapping[str, str]
    server: str


def cards(hub: HubContext, user: Any, stored: StoredUse, now: float) -> list[Card]:
    """Return a card for each active server of a user, the default server first."""
    active = [spawner for spawner in user.spawners.values() if spawner.active]
    return [_card(hub, user, each, stored, now) for each in sorted(active, key=lambda spawner: str(spawner.name))]


def _card(hub: HubContext, user: Any, spawner: Any, stored: StoredUse, now: float) -> Card:
    virtual = bool(getattr(spawner, "virtual", False))
    sessions = hub.registry.open_of(user.name, spawner.name)
    session = sessions[-1] if sessions else None
    job = job_of(hub, session)
    state, said = _state(hub, spawner, session, job, now)
    use = note = None
    if session is not None and stored.measured and session.state is SessionState.RUNNING:
        use = session_use(stored.uses.get(session.id, ()), stored.minutes.get(session.id, {}), now, virtual=virtual)
        note = None if use is not None else "What it uses is shown after its first two minutes."
    url = user.server_url(spawner.name) if spawner.ready else ""
    runs = live_runs(stored.runs, session.id) if session is not None else ()
    idle, warned, clicks = _idle(hub, session, now) if state == "running" else ("", False, 0)
    return Card(
        server=spawner.name,
        title=spawner.orm_spawner.display_name or _title(spawner.name),
        name=spawner.orm_spawner.display_name or "",
        state=state,
        label=LABELS[state],
        said=said,
        facts=_facts(spawner, session, now, virtual=virtual),
        url=url,
        progress=user.progress_url(spawner.name) if spawner.pending == "spawn" else "",
        time=spawner.time_left if state != "stopping" else None,
        more=more_time(hub, session, virtual=virtual),
        spent=spent_sentence(hub, session, job, now, virtual=virtual),
        use=use,
        note=note or "",
        runs=runs,
        links=_links(url, runs),
        again=again(session.request) if session is not None else {},
        session=session.id if session is not None else "",
        stops=session is not None and state in ("running", "unknown"),
        idle=idle,
        warned=warned,
        clicks=clicks,
    )


def _links(url: str, runs: Sequence[LiveRun]) -> tuple[tuple[str, str], ...]:
    """Return the pages of a server: its files, and what shows its trainings."""
    if not url:
        return ()
    files = ("Files", f"{url}carme/files")
    if not runs:
        return (files,)
    boards = [("TensorBoard", f"{url}tensorboard/")] if any(run.scalars for run in runs) else []
    return (files, ("Runs", f"{url}carme/runs.html"), *boards)


def _idle(hub: HubContext, session: Session | None, now: float) -> tuple[str, bool, int]:
    """Return that a session is idle and what follows, whether its user is warned, and how many clicks are left."""
    found = hub.idle.states.get(session.id) if hub.idle is not None and session is not None else None
    if found is None or not found.state.since:
        return "", False, 0
    state, rule = found.state, found.rule
    ends = rule.action is not Action.TELL
    left = state.deadline - now
    warned = ends and bool(rule.warn) and left <= max(rule.warn)
    sentence = f"It has been idle since {clock(state.since, now)}."
    if found.ending:
        return f"{sentence} It is being put in order now, and then stopped.", True, found.clicks_left
    if ends:
        sentence += f" It is stopped at {clock(state.deadline, now)} if nothing is at work in it until then."
    return sentence, warned, found.clicks_left if ends else 0


def _title(server: str) -> str:
    return f"Server “{server}”" if server else "Your server"


def job_of(hub: HubContext, session: Session | None) -> Job | None:
    """Return the job of a session, as Slurm was last seen; None if there is none, or it has ended."""
    snapshot = hub.watcher.latest
    if session is None or snapshot is None:
        return None
    found = [job for job in snapshot.named(session.job_name, session.user) if job.phase is not Phase.TERMINAL]
    return found[-1] if found else None


def _state(hub: HubContext, spawner: Any, session: Session | None, job: Job | None, now: float) -> tuple[str, str]:
    if spawner.pending == "stop" or (session is not None and session.is_ending):
        return "stopping", "It is being stopped."
    if spawner.pending == "spawn" or session is None or session.state is not SessionState.RUNNING:
        event = waiting_event(hub, session.id) if session is not None else None
        return "starting", event[1] if event is not None else "Its start has begun."
    if spawner.uncertainty:
        return "unknown", f"{spawner.uncertainty} The hub ends nothing because of that."
    since = job.start if job is not None and job.start else session.started
    where = f"It has been running on {session.node}"
    return "running", f"{where} since {clock(since, now)}." if since else f"{where}."


def _facts(spawner: Any, session: Session | None, now: float, *, virtual: bool) -> tuple[tuple[str, str], ...]:
    found = []
    if session is not None:
        found += _request_facts(session.request, profile_names(spawner), virtual=virtual)
        if session.request.account:
            found.append(("Account", session.request.account))
        if session.job_id:
            found.append(("Slurm job", str(session.job_id)))
    last = getattr(spawner.orm_spawner, "last_activity", None)
    if last is not None:
        found.append(("Last activity", clock(last.replace(tzinfo=UTC).timestamp(), now)))
    return tuple(found)


def _request_facts(request: Request, profiles: Mapping[str, str], *, virtual: bool) -> list[tuple[str, str]]:
    gpus = f"{request.gpus.count} × {'virtual ' if virtual else ''}{request.gpus.type}" if request.gpus else ""
    digest = f"{request.image_digest[:19]}…" if request.image_digest else ""
    every = [("Profile", profiles.get(request.profile, request.profile)), ("Image", request.image)]
    every += [("Image digest", digest), ("GPUs", gpus)]
    return [(name, value) for name, value in every if value]


def profile_names(spawner: Any) -> Mapping[str, str]:
    """Return the names of the site's profiles by slug, where the settings list them for all users."""
    said = getattr(spawner, "profile_list", None)
    rows: Iterable[Any] = said if isinstance(said, list) else ()
    return {str(row["slug"]): str(row.get("display_name", row["slug"])) for row in rows if "slug" in row}


def spent_sentence(hub: HubContext, session: Session | None, job: Job | None, now: float, *, virtual: bool) -> str:
    """Return what a session has used of its GPU time, and what the rest would use, as the ledger will count it."""
    rate = _rate(hub, session)
    if rate is None or job is None or not job.start:
        return ""
    sentence = f"{gpu_hours(int(max(0.0, now - job.start)) * rate)} used so far"
    if job.time_limit:
        rest = max(0, int(job.start + 60 * job.time_limit - now)) * rate
        sentence += f"; until the end of its time at most {gpu_hours(rest)} more"
    return f"{sentence.replace('GPU', 'virtual GPU') if virtual else sentence}."


def _rate(hub: HubContext, session: Session | None) -> int | None:
    """Return the milli-GPU-seconds that a session uses in a second; None without GPUs or a price that is known."""
    if session is None or not session.request.gpus:
        return None
    request, factor = session.request, ONE
    if hub.admission is not None:
        try:
            factor = hub.admission.ledger.context.factor(request.gpus.type, request.partition, request.qos)
        except Refused:  # the price is not read yet
            return None
    return request.gpus.count * factor


@dataclass(frozen=True, slots=True)
class MoreTime:
    """What a session may be given: so many minutes, as a text, and the GPU time held for them, "" = none or unknown."""

    minutes: int
    said: str
    costs: str


def more_time(hub: HubContext, session: Session | None, *, virtual: bool) -> tuple[MoreTime, ...]:
    """Return by how much a session's time can be extended with one click, and what that costs."""
    rate = _rate(hub, session)
    found = []
    for minutes in MORE_MINUTES:
        costs = gpu_hours(60 * minutes * rate) if rate else ""
        found.append(
            MoreTime(minutes, duration(60 * minutes), costs.replace("GPU", "virtual GPU") if virtual else costs)
        )
    return tuple(found)


def again(request: Request) -> dict[str, str]:
    """Return the query of a link that fills in the form like a request."""
    options = {
        "profile": request.profile,
        "image": request.image,
        "account": request.account,
        "gpu_type": request.gpus.type,
        "gpus": str(request.gpus.count) if request.gpus else "",
        "cpus": str(request.cpus),
        "memory_gib": str(max(1, request.memory_mib // 1024)),
        "time_minutes": str(request.time_limit),
        "working_folder": request.working_folder,
        **request.fields,
    }
    return {f"opt-{name}": value for name, value in options.items() if value}


def ended_cards(
    hub: HubContext,
    sessions: Iterable[Session],
    profiles: Mapping[str, str],
    stored: StoredUse,
    now: float,
    *,
    virtual: bool,
    finished: Sequence[FinishedJob] = (),
    names: Mapping[str, str] = MappingProxyType({}),
) -> list[EndedCard]:
    """Return cards of sessions that have ended, the newest first.

    Args:
        finished: jobs of their user that have ended; advice looks at several. names: of servers that have one for
            people.
    """
    found = []
    for session in sorted(sessions, key=lambda each: each.ended, reverse=True):
        seconds = max(0.0, session.ended - session.started) if session.started else 0.0
        request = session.request
        note = stored.idle_ends.get(session.id, IdleEndNote())
        refund = refund_sentence(hub, session) if _was_moved(session) else f" {note.refund}" if note.refund else ""
        said = advice_of_session(session, stored.uses.get(session.id, ()), finished, virtual=virtual)
        found.append(
            EndedCard(
                title=names.get(session.server_name) or _title(session.server_name),
                when=clock(session.ended, now),
                ran=duration(rounded(seconds)) if seconds else "",
                reason=session.end_reason + refund,
                used=said.line,
                suggestion=said.suggestion,
                facts=tuple(_request_facts(request, profiles, virtual=virtual)),
                again=note.again(again(request), request),
                server=session.server_name,
            )
        )
    return found


def _was_moved(session: Session) -> bool:
    return session.end_reason.startswith(MAINTENANCE_STOP)
