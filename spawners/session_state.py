"""What pages say of a server's session beyond "active": how the last one ended, and what is not known of this one."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from carme_hub.domain.cluster.end_mark import EndMark
from carme_hub.domain.cluster.reasons import LAUNCH_CODES, NO_FOLDER, end_sentence, mark_sentence
from carme_hub.domain.sessions.liveness import Liveness
from carme_hub.domain.sessions.profile import MISSING_FOLDER
from carme_hub.domain.sessions.session import MAINTENANCE_STOP, Session, SessionState
from carme_hub.spawners.companions.companions import described
from carme_hub.spawners.form.durations import clock
from carme_hub.spawners.hub.shared import Shared, ready

#: Why a session ended that a person, an administrator or the culler stopped.
STOPPED = "Stopped."


class SessionStatus:
    """Sentences for pages, read from memory; "" where there is nothing to say."""

    user: Any
    name: str
    _abandoned: bool
    _session_id: str
    virtual: bool
    user_options: dict[str, Any]
    orm_spawner: Any
    #: What is noted of a session that is stopped now.
    why_stopped = STOPPED
    #: The session that was ended so that another one of this server starts; "" for none.
    replaces = ""

    @property
    def ready(self) -> bool:
        """Whether the server can be used: one that was stopped while the hub was still starting is not routed again."""
        return bool(super().ready) and not self._abandoned  # type: ignore[misc]

    @property
    def certificate(self) -> str:
        """The fingerprint of the certificate that this server must show; "" without one, and without a session."""
        part = ready()
        session = part.book.current(self._session_id) if part is not None else None
        return session.certificate if session is not None else ""

    @property
    def last_end(self) -> str:
        """How this server's last session ended."""
        part = ready()
        if part is None:
            return ""
        for leaving in part.book.open_of(self.user.name, self.name):
            if leaving.cancel_reason.startswith(
                MAINTENANCE_STOP
            ):  # its end is being looked up; that it ends is certain
                why = leaving.cancel_reason
                return f"Your last session was {why[:1].lower()}{why[1:]}{_refund(part, leaving)}"
            if leaving.server_ended and not leaving.cancel_wanted:
                if leaving.server_exit in LAUNCH_CODES:  # says all that Slurm will say of it
                    mark = EndMark(leaving.server_exit, leaving.job_id)
                    return f"Your last session has ended: {mark_sentence(mark, leaving.request.working_folder)}"
                return "Your server has ended. How it ended is being looked up."
        session = part.book.last_end(self.user.name, self.name)
        if session is None or session.end_reason == STOPPED:
            return ""
        when = datetime.fromtimestamp(session.ended).astimezone()
        refund = _refund(part, session) if session.end_reason.startswith(MAINTENANCE_STOP) else ""
        return f"Your last session ended on {when:%d %B at %H:%M}: {session.end_reason}{refund}"

    @property
    def folder_offer(self) -> dict[str, Any] | None:
        """What is offered where the last start may have failed for want of its working folder; None where it was none.

        ``said`` is what a failure says that is meant; ``options`` are those of the last start, with the folder made.
        """
        options = dict(self.user_options or self.orm_spawner.user_options or {})
        folder = str(options.get("working_folder", ""))
        if not folder or options.get("missing_folder") == MISSING_FOLDER[1]:
            return None
        said = end_sentence("FAILED", (NO_FOLDER, 0), folder=folder.removeprefix("~/"))
        return {"said": said, "options": {**options, "missing_folder": MISSING_FOLDER[1]}}

    @property
    def running_out(self) -> dict[str, Any] | None:
        """The running session's UUID and when its time ends (for machines and for people); None where unknown."""
        part = ready()
        snapshot = part.watcher.latest if part is not None else None
        for session in part.book.open_of(self.user.name, self.name) if part is not None else ():
            jobs = snapshot.named(session.job_name, session.user) if snapshot is not None else ()
            for job in jobs:
                if session.state is SessionState.RUNNING and job.start and job.time_limit:
                    ends = job.start + 60 * job.time_limit
                    return {"session": session.id, "iso": iso(ends), "said": clock(ends, time.time())}
        return None

    @property
    def companions(self) -> list[Companion]:
        """The open companions of this server's session, as the home page shows them."""
        part = ready()
        if part is None:
            return []
        sessions = part.book.open_of(self.user.name, self.name)
        companions = [each for session in sessions for each in part.book.companions_of(session.id)]
        return [_companion(part, each, virtual=bool(self.virtual)) for each in companions]

    @property
    def doubt(self) -> str:
        """Why it is not known whether this server's session still runs."""
        part = ready()
        for session in part.book.open_of(self.user.name, self.name) if part is not None else ():
            verdict = part.keeper.verdict(session.id) if part is not None else None
            if session.state is SessionState.RUNNING and verdict is not None and verdict.liveness is Liveness.UNKNOWN:
                whose = f"server “{self.name}”" if self.name else "server"
                return f"Whether your {whose} still runs is not known at the moment. {verdict.reason}"
        return ""


@dataclass(frozen=True, slots=True)
class Companion:
    """One companion as a page shows it: what it is and how it stands; ``leaving`` when it is being given back.

    ``waiting``: there is nothing yet to give back, only a request to cancel.
    """

    session: str
    id: str
    text: str
    leaving: bool
    waiting: bool


def _companion(part: Shared, one: Session, *, virtual: bool) -> Companion:
    now = time.time()
    seen = described(part, one, now, virtual=virtual)
    text = str(seen["shown"])
    if seen["state"] == "running":
        started, ends = float(str(seen["started"])), float(str(seen["ends"]))
        text += f", since {clock(started, now)}" if started else ""
        text += f", until {clock(ends, now)} at the latest" if ends else ""
        text += "."
    elif seen["said"]:
        text += f": {str(seen['said'])[:1].lower()}{str(seen['said'])[1:]}"
    return Companion(one.parent, one.id, text, leaving=bool(one.cancel_wanted), waiting=seen["state"] == "waiting")


def _refund(part: Shared, session: Session) -> str:
    """Return what is said of the GPU time of a session that made way for maintenance, after a sentence."""
    refunded = part.admission is not None and "maintenance" in part.admission.policy().refunded
    return " The GPU time that it used is refunded." if refunded and session.request.gpus else ""


def iso(at: float) -> str:
    """Return a moment for the ``datetime`` attribute."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
