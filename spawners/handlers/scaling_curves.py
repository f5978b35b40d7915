"""``PUT /hub/api/carme/sessions/<uuid>/scaling``: a session uploads the scaling curve of a training.

The hub keeps one curve for each user, image and script; a new one replaces the old one. Only that user sees it, on the
form.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError
from tornado import web

from carme_hub.domain.scaling_curve import ScalingCurve
from carme_hub.domain.sessions.session import Session
from carme_hub.errors import StoreError
from carme_hub.spawners.form.scaling_curves import CurveUpload
from carme_hub.spawners.handlers.companions import SessionHandler
from carme_hub.spawners.hub.shared import HubContext, started_hub
from carme_hub.store.threads import in_store_thread

SCALING = r"/api/carme/sessions/([0-9a-f-]{36})/scaling"
_LARGEST_BODY = 8192


class ScalingHandler(SessionHandler):
    """Accepts a curve from the session's own programs, and from users who may start servers for its user."""

    async def put(self, id: str) -> None:
        """Store the curve."""
        await self._authorize(id)

    async def _answer(self, hub: HubContext, spawner: Any, session: Session, *_more: str) -> None:  # noqa: ARG002
        sent = _sent(self.request.body)
        image = session.request.image
        curve = sent.of(image)
        await in_store_thread(hub.curves.put, session.user, image, curve.script, curve.measured, curve.to_value())
        self.finish(json.dumps({"image": image, "script": curve.script, "advice": curve.advice()}))


async def curves_of(user: str) -> tuple[ScalingCurve, ...]:
    """Return a user's curves, the newest first; none without Slurm, and while the database does not answer."""
    hub = started_hub()
    if hub is None:
        return ()
    try:
        found = await in_store_thread(hub.curves.of, user)
    except StoreError as error:
        hub.log.warning("The form of %s shows no scaling curves: %s", user, error)
        return ()
    return tuple(ScalingCurve.from_value(image, script, value) for image, script, value in found)


def _sent(body: bytes) -> CurveUpload:
    if len(body) > _LARGEST_BODY:
        raise web.HTTPError(413, f"A curve has at most {_LARGEST_BODY} bytes.")
    try:
        return CurveUpload.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "body"
        raise web.HTTPError(400, f"{where}: {first['msg']}") from error
