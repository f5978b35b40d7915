"""Where the hub asks, before a session starts in a booking, that Slurm lets its user in."""

from __future__ import annotations

import hmac
import os

from pydantic import BaseModel, ConfigDict, ValidationError
from tornado.web import HTTPError

from carme_hub.booking.hub_access import PATH, SIGNATURE_HEADER, sign
from carme_hub.services.handlers import ApiHandler


class AccessRequest(BaseModel):
    """Who is about to start in which booking."""

    model_config = ConfigDict(extra="forbid", strict=True)

    user: str
    booking: str


class HubAccessHandler(ApiHandler):
    """Answers the hub alone, which is known by its mark: no user's token or cookie counts here."""

    async def prepare(self) -> None:
        """Let nobody else in."""
        token = os.environ.get("JUPYTERHUB_API_TOKEN", "")
        theirs = self.request.headers.get(SIGNATURE_HEADER, "").encode()
        if not token or not hmac.compare_digest(sign(token, self.request.body).encode(), theirs):
            raise HTTPError(403, log_message="Only the hub asks this.")
        if self.service.not_ready:
            raise HTTPError(503, log_message=self.service.not_ready)

    async def post(self) -> None:
        """Answer whether they get in by now; who would not is waited for while everything is looked at again."""
        try:
            asked = AccessRequest.model_validate_json(self.request.body)
        except ValidationError as error:
            raise HTTPError(400, log_message="It takes a user and a booking.") from error
        self.answer({"let_in": await self.service.ensure_access(asked.user, asked.booking)})


HUB_ACCESS = [(PATH, HubAccessHandler)]
