"""What the pages of all services have in common: the login, tabs, notices, forms that cannot be forged."""

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
    """What was typed cannot be taken; the message says what to do."""

    reason = "bad-form"


class PageHandler(Handler):
    """A page of a service, whose own templates are in its ``folder``."""

    #: The tab that is shown as current.
    tab = ""
    #: The visitor needs one of ``scopes`` to look, and one of ``writes``, which are those of REST, to send a form: a
    #: program with a token needs no secret of the page for it, so a token for reading must not do.
    scopes: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()

    async def prepare(self) -> None:
        """Lead to the login where nobody is logged in; find out what the visitor may see."""
        await super().prepare()
        if self._finished:
            return
        if self.current_user is None:
            if self.looks:
                self.redirect(self.get_login_url())
                return
            raise HTTPError(403, log_message="This form is too old to be taken. Open the page again, and send it anew.")
        if not self.visitor.is_user:
            raise HTTPError(403, log_message="Pages are for people; a service asks the REST interface below api/v1/.")
        needed = self.scopes if self.looks else self.writes
        if not self.may(*needed):
            what = "open this page" if self.looks else "do this"
            raise HTTPError(403, log_message=f"You may not {what}. It needs the scope {' or '.join(needed)}.")

    @property
    def looks(self) -> bool:
        """Whether the visitor opens a page; otherwise a form is sent."""
        return self.request.method in ("GET", "HEAD")

    def tabs(self) -> list[dict[str, Any]]:
        """Return the parts of the service that the visitor may open."""
        raise NotImplementedError

    def tabs_of(self, *parts: tuple[str, str]) -> list[dict[str, Any]]:
        """Return tabs as pages show them, of (path below the service, name)."""
        return [{"path": path, "name": name, "current": path == self.tab} for path, name in parts]

    def show(self, template: str, *, heading: str, **more: Any) -> None:
        """Send a page; a notice that the last form left is shown once."""
        page = self.page(
            template if "/" in template else f"{self.service.folder}/{template}",
            heading=heading,
            tabs=self.tabs(),
            notices=[*self._left_notices(), *more.pop("notices", [])],
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
        """Ask once more before something that cannot be undone; "yes" sends the same form again.

        Args:
            balances: what accounts have left ``before`` and ``after`` it, each with its ``name``.
            fixed: further fields, for what must not change until "yes", nor when "yes" is said twice.
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
            told=(),  # one question at a time
            back=self.service.prefix + back,
            action=self.request.path,
        )

    @property
    def confirmed(self) -> bool:
        """Whether the visitor has said yes."""
        return self.get_body_argument("confirmed", "") == "yes"

    def done(self, text: str, path: str, level: str = "success") -> None:
        """Lead to a page, with a notice on it: a reload sends nothing again."""
        value = json.dumps({"level": level, "text": text[:1000]})
        secure = self.request.headers.get("X-Forwarded-Proto", self.request.protocol) == "https"
        self.set_signed_cookie(
            *(_NOTICE, value), expires_days=None, path=self.service.prefix, httponly=True, samesite="Lax", secure=secure
        )
        self.redirect(self.service.prefix + path, status=303)

    def _left_notices(self) -> list[dict[str, str]]:
        left = self.get_signed_cookie(_NOTICE, max_age_days=1)
        if not left:
            return []
        self.clear_cookie(_NOTICE, path=self.service.prefix)
        return [json.loads(left)]

    def log_write(self, what: str, *values: Any) -> None:
        """Log what somebody changed."""
        self.service.log.info(f"%s {what}", self.visitor.name, *values)

    def text(self, name: str, what: str, *, most: int = 500, needed: bool = True) -> str:
        """Return a field of the form."""
        value = self.get_body_argument(name, "").strip()
        if needed and not value:
            raise BadForm(f"{what} is missing.")
        if len(value) > most:
            raise BadForm(f"{what} has at most {most} characters.")
        return value

    def number(self, name: str, otherwise: int = 0) -> int:
        """Return a whole number from the address, from 0 on."""
        said = self.get_query_argument(name, "")
        return int(said) if said.isascii() and said.isdigit() and len(said) < 19 else otherwise
