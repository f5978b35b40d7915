"""Where reporters send minutes: ``POST api/v1/sessions/<id>/minutes`` with ``Authorization: carme-activity TOKEN``.

Only the session's own token counts: no login, cookie or token of the hub. A refusal (4xx) tells the reporter to give
these minutes up; 503 and everything from a proxy tells it to send them again.
"""

from __future__ import annotations

import time

from pydantic import ValidationError
from tornado.web import HTTPError

from carme_hub.activity.settings import DAY
from carme_hub.domain.activity.minutes import MinutesRefused, check_times
from carme_hub.domain.sessions.session import Session, SessionState
from carme_hub.services.activity.rest.models import LARGEST_BODY, ReportIn
from carme_hub.services.handlers import ApiHandler
from carme_hub.services.rest import error_sentence
from carme_hub.store.activity import Report

_SCHEME = "carme-activity "


class ReportHandler(ApiHandler):
    """Accepts the minutes of one session."""

    def check_xsrf_cookie(self) -> None:
        """Skip the XSRF check, since cookies do not count here."""

    async def authenticate(self) -> None:
        """Skip the hub's login: only the session's token counts."""

    async def post(self, session: str) -> None:
        """Check the minutes, and answer 204 when they are stored."""
        given = self.request.headers.get("Authorization", "")
        if not given.startswith(_SCHEME) or not self.service.tokens.fits(session, given.removeprefix(_SCHEME).strip()):
            raise HTTPError(403, log_message="This is not the token of that session.")
        if len(self.request.body) > LARGEST_BODY:
            raise HTTPError(413, log_message=f"A report has at most {LARGEST_BODY} bytes.")
        if not self.request.headers.get("Content-Type", "").startswith("application/json"):
            raise HTTPError(415, log_message="Send the body as application/json.")
        try:
            sent = ReportIn.model_validate_json(self.request.body)
        except ValidationError as error:
            raise HTTPError(422, log_message=error_sentence(error)) from error
        known = await self.service.sessions.get(session)
        if known is None:
            raise HTTPError(403, log_message="There is no such session.")
        try:
            report = checked(sent, known, time.time(), self.service.settings.keep_minutes * DAY)
            await self.service.nodes.check(known, sent.node)
        except MinutesRefused as error:
            self.service.log.warning("Minutes of session %s on %s are refused: %s", session, sent.node, error.message)
            raise HTTPError(422, log_message=error.message) from error
        await self.service.recorder.record(report)
        self.set_status(204)


def checked(sent: ReportIn, session: Session, now: float, kept_seconds: float) -> Report:
    """Return what is stored of a report.

    Raises:
        MinutesRefused: it cannot be of this session.
    """
    if sent.session != session.id:
        raise MinutesRefused("The minutes are of another session than the address.")
    minutes = [minute.to_domain() for minute in sent.minutes]
    most = session.request.gpus.count // max(1, session.request.nodes)
    if len(sent.gpus) > most or any(len(minute.gpus) > len(sent.gpus) for minute in minutes):
        raise MinutesRefused(f"The session has {most} GPUs on a node, and more are reported.")
    ended = session.ended if session.state is SessionState.ENDED else 0.0
    check_times(minutes, sent.now, now, session.created, ended, kept_seconds)
    about = sent.model_dump(include={"virtual", "memory_limit", "cpus", "gpus"})
    return Report(session.id, sent.node, tuple(minutes), about)
