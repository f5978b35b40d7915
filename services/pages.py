"""The base handler for pages of services: login, tabs, notices, and forms with XSRF protection."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tornado.web import HTTPError

from carme_hub.errors import Refused
from carme_hub.services.handlers import Handler

_NOTICE = "carme-notice"


class BadForm(Refused):
    """A form with an invalid field; the message says what to do."""

    reason = "bad-form"


class PageHandler(Handler):
    """A page of a service, whose own templates are in its ``folder``."""

    #: The path of the tab that is shown as current.
    tab = ""
    #: The visitor needs one of ``scopes`` to open the page, and one of ``write_scopes`` (those of REST) to send a form:
    #: a program with a token needs no XSRF token, so a token for reading must not be enough.
    scopes: tuple[str, ...] = ()
    write_scopes: tuple[str, ...] = ()

    async def prepare(self) -> None:
        """Redirect to the login without one; check the visitor's scopes."""
        await super().prepare()
        if self._finished:
            return
        if self.current_user is None:
            if self.is_read:
                self.redirect(self.get_login_url())
                return
            raise HTTPError(403, log_message="This form is too old. Open the page again, and send the form again.")
        if not self.visitor.is_user:
            raise HTTPError(403, log_message="Pages are for people; a service uses the REST interface below api/v1/.")
        needed = self.scopes if self.is_read else self.write_scopes
        if not self.has_scope(*needed):
            what = "open this page" if self.is_read else "do this"
            raise HTTPError(403, log_message=f"You may not {what}. It needs the scope {' or '.join(needed)}.")

    @property
    def is_read(self) -> bool:
        """Whether the request opens a page; otherwise it sends a form."""
        return self.request.method in ("GET", "HEAD")

    def tabs(self) -> list[dict[str, Any]]:
        """Return the tabs that the visitor may open."""
        raise NotImplementedError

    def tabs_of(self, *parts: tuple[str, str]) -> list[dict[str, Any]]:
        """Return the template's tabs for pairs of (path below the service, name)."""
        return [{"path": path, "name": name, "current": path == self.tab} for path, name in parts]

    def show(self, template: str, *, heading: str, **more: Any) -> None:
        """Send a page, with the notice that the last form left for it."""
        page = self.page(
            template if "/" in template else f"{self.service.folder}/{template}",
            heading=heading,
            tabs=self.tabs(),
            notices=[*self._pop_notices(), *more.pop("notices", [])],
            virtual=self.service.virtual,
            key=secrets.token_urlsafe(12),
            **more,
        )
        self.finish(page)

    def confirm(
        self,
        question: str,
        points: Sequence[str],
        button: str,
        *,
        back: str,
        danger: bool = False,
        balances: Sequence[Mapping[str, str]] = (),
        fixed: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Ask for confirmation of something that cannot be undone; "yes" sends the same form again.

        Args:
            balances: each account's ``name`` and what it has left ``before`` and ``after``.
            fixed: further fields whose values must stay the same until "yes" is sent, also when it is sent twice.
        """
        names = [name for name in self.request.body_arguments if name not in ("_xsrf", "confirmed", *fixed)]
        fields = [*((name, each) for name in names for each in self.get_body_arguments(name)), *fixed.items()]
        self.show(
            "service/confirm.html",
            heading=question,
            points=points,
            button=button,
            danger=danger,
            balances=balances,
            fields=fields,
            due_notices=(),  # the page shows the question alone
            back=self.service.prefix + back,
            action=self.request.path,
        )

    @property
    def confirmed(self) -> bool:
        """Whether the visitor has confirmed the form."""
        return self.get_body_argument("confirmed", "") == "yes"

    def done(self, text: str, path: str, level: str = "success") -> None:
        """Redirect to a page and show a notice there; a reload of it sends no form again."""
        value = json.dumps({"level": level, "text": text[:1000]})
        secure = self.request.headers.get("X-Forwarded-Proto", self.request.protocol) == "https"
        self.set_signed_cookie(
            *(_NOTICE, value), expires_days=None, path=self.service.prefix, httponly=True, samesite="Lax", secure=secure
        )
        self.redirect(self.service.prefix + path, status=303)

    def _pop_notices(self) -> list[dict[str, str]]:
        left = self.get_signed_cookie(_NOTICE, max_age_days=1)
        if not left:
            return []
        self.clear_cookie(_NOTICE, path=self.service.prefix)
        return [json.loads(left)]

    def log_write(self, what: str, *values: Any) -> None:
        """Log a change, with the visitor's name."""
        self.service.log.info(f"%s {what}", self.visitor.name, *values)

    def text(self, name: str, label: str, *, max_length: int = 500, required: bool = True) -> str:
        """Return a field of the form; ``label`` names it in errors."""
        value = self.get_body_argument(name, "").strip()
        if required and not value:
            raise BadForm(f"{label} is missing.")
        if len(value) > max_length:
            raise BadForm(f"{label} has at most {max_length} characters.")
        return value

    def number(self, name: str, default: int = 0) -> int:
        """Return a whole number of the query, 0 or larger."""
        text = self.get_query_argument(name, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else default
