"""Endpoint for the hub: before a session starts in a booking, make sure that its user has access to it in Slurm."""

from __future__ import annotations

import hmac
import os

from pydantic import BaseModel, ConfigDict, ValidationError
from tornado.web import HTTPError

from carme_hub.booking.hub_access import PATH, SIGNATURE_HEADER, sign
from carme_hub.services.handlers import ApiHandler


class AccessRequest(BaseModel):
    """The user who is about to start a session, and the booking."""

    model_config = ConfigDict(extra="forbid", strict=True)

    user: str
    booking: str


class HubAccessHandler(ApiHandler):
    """Serves only the hub, which signs its requests; tokens and cookies of users are not accepted."""

    async def prepare(self) -> None:
        """Check the signature."""
        token = os.environ.get("JUPYTERHUB_API_TOKEN", "")
        theirs = self.request.headers.get(SIGNATURE_HEADER, "").encode()
        if not token or not hmac.compare_digest(sign(token, self.request.body).encode(), theirs):
            raise HTTPError(403, log_message="Only the hub asks this.")
        if self.service.not_ready:
            raise HTTPError(503, log_message=self.service.not_ready)

    async def post(self) -> None:
        """Answer whether the user has access; if not yet, after a further pass of the reconciler."""
        try:
            asked = AccessRequest.model_validate_json(self.request.body)
        except ValidationError as error:
            raise HTTPError(400, log_message="Give a user and a booking.") from error
        self.answer({"let_in": await self.service.ensure_access(asked.user, asked.booking)})


HUB_ACCESS = [(PATH, HubAccessHandler)]
