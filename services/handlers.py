"""Base handlers of services: the visitor and their scopes, pages with the hub's layout, JSON, errors.

A visitor has a cookie from a login by the hub, or sends an API token in the header. Scopes are checked at each
request. Changes need POST and, with a cookie, the hub's XSRF token.
"""

from __future__ import annotations

import json
from http.client import responses
from typing import Any
from urllib.parse import urlencode

from jupyterhub.services.auth import HubOAuthenticated, UserNotAllowed
from jupyterhub.utils import url_path_join
from tornado.web import HTTPError, RequestHandler

from carme_hub.domain.quotas.group_names import accounts_in, person_in
from carme_hub.errors import CarmeError, Refused, SlurmError, StoreError


class Visitor:
    """The user or service that sent the request, from the hub's model of it.

    A service may have the same name as a user, and is never treated as that user.

    Attributes:
        actor: the name under which it writes, "service:NAME" for a service; no user name contains a colon.
        person: the person to whom the policy applies. accounts: what it may charge; a service may charge nothing.
    """

    def __init__(self, model: dict[str, Any]) -> None:
        self.name = str(model["name"])
        self.kind = str(model.get("kind", "user"))
        self.is_user = self.kind == "user"
        self.actor = self.name if self.is_user else f"{self.kind}:{self.name}"
        self.scopes = frozenset(model.get("scopes", ()))
        groups = [str(group) for group in model.get("groups") or ()] if self.is_user else []
        self.groups, self.accounts = tuple(groups), accounts_in(groups)
        self.person = person_in(self.actor, groups, admin=self.is_user and bool(model.get("admin")))

    @property
    def json_escaped_name(self) -> str:
        """The name, escaped for a string in a script of the hub's page."""
        return json.dumps(self.name)[1:-1].replace("<", "\\u003c")


class Handler(HubOAuthenticated, RequestHandler):
    """The base of all handlers: security headers, scopes, errors."""

    wants_json = False
    _not_allowed = False

    @property
    def service(self) -> Any:
        """The application that the hub started."""
        return self.settings["service"]

    @property
    def visitor(self) -> Visitor:
        """The visitor; only after ``require_scope``."""
        if not hasattr(self, "_visitor"):
            self._visitor = Visitor(self.current_user)
        return self._visitor

    def set_default_headers(self) -> None:
        """Forbid frames and caches."""
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Content-Security-Policy", "frame-ancestors 'none'")
        self.set_header("Cache-Control", "no-store")

    async def prepare(self) -> None:
        """Answer 503 while the service is not ready; otherwise authenticate the visitor."""
        if self.service.not_ready:
            self.set_header("Retry-After", "5")
            raise HTTPError(503, reason="Not ready", log_message=self.service.not_ready)
        await self.authenticate()

    async def authenticate(self) -> None:
        """Ask the hub for the visitor asynchronously; the ``get_current_user`` of HubOAuthenticated blocks the loop."""
        model = await self.hub_auth.get_user(self, sync=False)
        try:
            self.current_user = self.check_hub_user(model) if model else None
        except UserNotAllowed:
            self.current_user = None
            self._not_allowed = True

    def get_current_user(self) -> None:
        """Return None: ``authenticate`` sets the user."""

    def get_login_url(self) -> str:
        """Return the login page, or answer 403 to a user who is logged in and may not use the service.

        A redirect to the login would come back here without end.
        """
        if self._not_allowed:
            raise HTTPError(403, log_message="You may not use this service. Ask an administrator of the hub.")
        return str(super().get_login_url())

    def require_scope(self, *scopes: str) -> Visitor:
        """Return the visitor if they have one of the scopes, otherwise answer 403."""
        if self.current_user is None:
            raise HTTPError(403, log_message="Log in, or send a token in the Authorization header.")
        if scopes and not self.has_scope(*scopes):
            raise HTTPError(403, log_message=f"This needs the scope {' or '.join(scopes)}.")
        return self.visitor

    def has_scope(self, *scopes: str) -> bool:
        """Return whether the visitor has one of the scopes."""
        return any(self.hub_auth.check_scopes([scope], self.current_user) for scope in scopes)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer with a slug and a sentence, as JSON or as a page; never with internals."""
        error = kwargs.get("exc_info", (None, None, None))[1]
        reason, message = explain(error, status_code, self.service.not_ready)
        if isinstance(error, (Refused, StoreError, SlurmError)):
            self.set_status(status_code := self._refused(error) if isinstance(error, Refused) else 503)
        if self.wants_json:
            self.set_header("Content-Type", "application/json")
            self.finish(json.dumps({"error": reason, "message": message}))
        else:
            title = responses.get(status_code, "Error")
            self.finish(self.page("service/error.html", status=status_code, title=title, message=message))

    def _refused(self, error: Refused) -> int:
        """Return the status of a refusal: a page of what is not there is not found; a form is not done."""
        return 404 if error.reason == "unknown" and self.request.method == "GET" else 409

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        """Log the exception, unless it is ``Refused``, which is an ordinary answer."""
        if not isinstance(value, Refused):
            super().log_exception(typ, value, tb)

    def page(self, template: str, **more: Any) -> str:
        """Return a page with the hub's layout."""
        auth = self.hub_auth
        hub = auth.hub_prefix
        user = self.visitor if self.current_user else None
        return str(
            self.settings["pages"]
            .get_template(template)
            .render(
                base_url=hub,
                prefix=auth.base_url,
                user=user,
                login_url=url_path_join(hub, "login") + "?" + urlencode({"next": self.request.uri or ""}),
                logout_url=url_path_join(hub, "logout"),
                static_url=lambda path, **_more: url_path_join(hub, "static", path),
                own_static=lambda path: self.service.prefix + "static/" + path,
                own_prefix=self.service.prefix,
                own_layout=f"{self.service.folder}/layout.html",
                own_title=self.service.title,
                parsed_scopes={},
                services=[{"href": self.service.prefix, "name": self.service.title}],
                xsrf_token=self.xsrf_token.decode() if self.current_user else "",
                no_spawner_check=True,
                **more,
            )
        )


class ApiHandler(Handler):
    """Answers JSON; never redirects to a login page."""

    wants_json = True

    def get_login_url(self) -> str:
        """Answer 403 instead of a redirect to the login page."""
        raise HTTPError(403, log_message="Log in, or send a token in the Authorization header.")

    def answer(self, body: Any, status: int = 200) -> None:
        """Send a JSON document."""
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(body))

    def body_json(self) -> dict[str, Any]:
        """Return the object in the body."""
        if not (self.request.headers.get("Content-Type") or "").startswith("application/json"):
            raise HTTPError(415, log_message="Send the body as application/json.")
        try:
            body = json.loads(self.request.body)
        except (ValueError, RecursionError) as error:
            raise HTTPError(400, log_message="The body is not JSON.") from error
        if not isinstance(body, dict):
            raise HTTPError(400, log_message="The body is an object.")
        return body


class NotFoundHandler(Handler):
    """Any other path."""

    async def prepare(self) -> None:
        """Answer 404 to everybody."""
        self.wants_json = "/api/" in self.request.path
        if not self.wants_json and not self.service.not_ready:
            await self.authenticate()
        raise HTTPError(404, log_message="There is no such page here.")


def explain(error: BaseException | None, status: int, not_ready: str) -> tuple[str, str]:
    """Return a slug for programs and a sentence for people."""
    if isinstance(error, Refused):
        return error.reason, error.message
    if isinstance(error, StoreError):
        return "database", "The database does not answer. Nothing was changed; try again in a moment."
    if isinstance(error, SlurmError):  # Slurm's own message goes to the log only
        return "slurm", "Slurm does not answer just now. Nothing was changed; try again in a moment."
    if isinstance(error, CarmeError):
        return "error", str(error)
    if status == 503 and not_ready:
        return "not-ready", f"{not_ready} It tries again by itself."
    message = str(getattr(error, "log_message", "") or "") if isinstance(error, HTTPError) else ""
    slug = responses.get(status, "error").lower().replace(" ", "-")
    return slug, message or ("An error happened in the service; its log has the details." if status >= 500 else slug)
