"""The state of a server's session for the hub's pages: how the last one ended, time left, companions, uncertainty.

``SessionStatus`` is mixed into the Slurm spawner; the templates of the home, spawn and pending pages read it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from jupyterhub import orm

from carme_hub.domain.cluster.end_mark import EndMark
from carme_hub.domain.cluster.reasons import LAUNCH_CODES, NO_FOLDER, end_sentence, mark_sentence
from carme_hub.domain.sessions.end_cause import NOT_IN_TIME
from carme_hub.domain.sessions.liveness import Liveness
from carme_hub.domain.sessions.profile import MISSING_FOLDER
from carme_hub.domain.sessions.session import MAINTENANCE_STOP, Session, SessionState
from carme_hub.spawners.companions.descriptions import described
from carme_hub.spawners.form.durations import clock
from carme_hub.spawners.hub.shared import HubContext, started_hub

#: The end reason of a session that a person, an administrator or the culler stopped.
STOPPED = "Stopped."


class SessionStatus:
    """Sentences for pages, made from memory; "" if there is nothing to show."""

    user: Any
    name: str
    _stopped_before_check: bool
    _session_id: str
    virtual: bool
    api_token: str
    _hub_db: Any
    user_options: dict[str, Any]
    orm_spawner: Any
    start_timeout: Any
    _progress: Any
    #: The reason that is stored for a session that is being stopped.
    stop_reason = STOPPED
    #: Id of the session that was ended so that this server starts again; "" for none.
    replaces = ""

    @property
    def ready(self) -> bool:
        """Whether the server can be used; a server that was stopped during the hub's start gets no route again."""
        return bool(super().ready) and not self._stopped_before_check  # type: ignore[misc]

    def ends_too_late(self) -> str:
        """Return why a start that exceeded ``start_timeout`` fails; JupyterHub stops its session, for this reason."""
        last = self._progress.last if self._progress is not None else ""
        self.stop_reason = (
            f"{NOT_IN_TIME}{max(1, round(self.start_timeout / 60))} min, and its job is cancelled. "
            f"Last state: {last or 'unknown.'} Start it again, or request less."
        )
        return self.stop_reason

    @property
    def certificate(self) -> str:
        """The fingerprint of the certificate that this server must show; "" without a certificate or session."""
        hub = started_hub()
        session = hub.registry.current(self._session_id) if hub is not None else None
        return session.certificate if session is not None else ""

    @property
    def last_end(self) -> str:
        """How this server's last session ended."""
        hub = started_hub()
        if hub is None:
            return ""
        for leaving in hub.registry.open_of(self.user.name, self.name):
            if leaving.cancel_reason.startswith(
                MAINTENANCE_STOP
            ):  # its end is being looked up; that it ends is certain
                why = leaving.cancel_reason
                return f"Your last session was {why[:1].lower()}{why[1:]}{refund_sentence(hub, leaving)}"
            if leaving.server_ended and not leaving.cancel_wanted:
                if leaving.server_exit in LAUNCH_CODES:  # says all that Slurm will say of it
                    mark = EndMark(leaving.server_exit, leaving.job_id)
                    return f"Your last session has ended: {mark_sentence(mark, leaving.request.working_folder)}"
                return "Your server has ended. The hub is looking up how."
        session = hub.registry.last_end(self.user.name, self.name)
        if session is None or session.end_reason == STOPPED:
            return ""
        when = datetime.fromtimestamp(session.ended).astimezone()
        refund = refund_sentence(hub, session) if session.end_reason.startswith(MAINTENANCE_STOP) else ""
        return f"Your last session ended on {when:%d %B at %H:%M}: {session.end_reason}{refund}"

    @property
    def folder_offer(self) -> dict[str, Any] | None:
        """The offer to make the working folder if the last start failed without it; None if the start named none.

        ``said``: the failure's message to which the offer applies; ``options``: the last start's, with the folder made.
        """
        options = dict(self.user_options or self.orm_spawner.user_options or {})
        folder = str(options.get("working_folder", ""))
        if not folder or options.get("missing_folder") == MISSING_FOLDER[1]:
            return None
        said = end_sentence("FAILED", (NO_FOLDER, 0), folder=folder.removeprefix("~/"))
        return {"said": said, "options": {**options, "missing_folder": MISSING_FOLDER[1]}}

    @property
    def time_left(self) -> dict[str, Any] | None:
        """The running session's UUID and the end of its time (for machines and for people); None if unknown."""
        hub = started_hub()
        snapshot = hub.watcher.latest if hub is not None else None
        for session in hub.registry.open_of(self.user.name, self.name) if hub is not None else ():
            jobs = snapshot.named(session.job_name, session.user) if snapshot is not None else ()
            for job in jobs:
                if session.state is SessionState.RUNNING and job.start and job.time_limit:
                    ends = job.start + 60 * job.time_limit
                    return {"session": session.id, "iso": iso(ends), "said": clock(ends, time.time())}
        return None

    @property
    def companions(self) -> list[Companion]:
        """The open companions of this server's session, for the home page."""
        hub = started_hub()
        if hub is None:
            return []
        sessions = hub.registry.open_of(self.user.name, self.name)
        companions = [each for session in sessions for each in hub.registry.companions_of(session.id)]
        return [as_shown(hub, each, virtual=bool(self.virtual)) for each in companions if not each.request.batch]

    @property
    def uncertainty(self) -> str:
        """Why it is unknown whether this server's session still runs; "" if it is known."""
        hub = started_hub()
        for session in hub.registry.open_of(self.user.name, self.name) if hub is not None else ():
            verdict = hub.reconciler.verdict(session.id) if hub is not None else None
            if session.state is SessionState.RUNNING and verdict is not None and verdict.liveness is Liveness.UNKNOWN:
                server = f"server “{self.name}”" if self.name else "server"
                return f"The hub does not know at the moment whether your {server} still runs. {verdict.reason}"
        return ""

    def _token_id(self) -> int:
        """Return the id of the server's API token; 0 while it has none."""
        token = orm.APIToken.find(self._hub_db(), self.api_token) if self.api_token else None
        return token.id if token is not None else 0


@dataclass(frozen=True, slots=True)
class Companion:
    """One companion or batch job as a page shows it: its resources and state; ``leaving``: it is being ended.

    ``waiting``: its job waits, so that the request can be cancelled. ``beside``: the query of a link to the form, for
    a server on the first node of a batch job that runs; {} for others.
    """

    session: str
    id: str
    text: str
    leaving: bool
    waiting: bool
    beside: Mapping[str, str] = field(default_factory=dict)


def as_shown(hub: HubContext, one: Session, *, virtual: bool) -> Companion:
    """Return a companion or a batch job as a page shows it."""
    now = time.time()
    seen = described(hub, one, now, virtual=virtual)
    text = str(seen["shown"])
    if seen["state"] == "running":
        started, ends = float(str(seen["started"])), float(str(seen["ends"]))
        text += f", since {clock(started, now)}" if started else ""
        text += f", until {clock(ends, now)} at the latest" if ends else ""
        text += "."
    elif seen["said"]:
        text += f": {str(seen['said'])[:1].lower()}{str(seen['said'])[1:]}"
    waiting, nodes = seen["state"] == "waiting", seen["nodes"]
    beside: dict[str, str] = {}
    if one.request.batch and isinstance(nodes, list) and nodes and not one.cancel_wanted:
        asked = {"profile": one.request.profile, "image": one.request.image, "account": one.request.account}
        beside = {f"opt-{name}": value for name, value in {**asked, "node": str(nodes[0])}.items() if value}
    return Companion(one.parent, one.id, text, leaving=bool(one.cancel_wanted), waiting=waiting, beside=beside)


def refund_sentence(hub: HubContext, session: Session) -> str:
    """Return a sentence about the refund for a session that was stopped for maintenance, "" without one."""
    refunded = hub.admission is not None and "maintenance" in hub.admission.policy().refunded
    return " The GPU time that it used is refunded." if refunded and session.request.gpus else ""


def iso(at: float) -> str:
    """Return a time for HTML's ``datetime`` attribute."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
