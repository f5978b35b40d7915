"""What all pages have in common: the login, tabs, notices, forms."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal, InvalidOperation
from types import MappingProxyType
from typing import Any, TypeVar

from tornado.web import HTTPError

from carme_hub.accounting.grants import KeyUsed
from carme_hub.domain.ledger import GPU_HOUR
from carme_hub.errors import Refused
from carme_hub.services.handlers import Handler, Visitor
from carme_hub.services.quotas import view
from carme_hub.services.quotas.app import GRANT, MANAGE, POLICY, READ, READ_ALL
from carme_hub.store.ledger import LedgerReads
from carme_hub.store.threads import in_store_thread

T = TypeVar("T")

_NOTICE = "carme-quotas-notice"
#: The most that a person types as hours at once.
MOST_HOURS = 10_000_000
ADMINISTRATION = (
    ("administration", "Accounts"),
    ("administration/groups", "Groups"),
    ("administration/requests", "Requests"),
    ("administration/anomalies", "Anomalies"),
    ("administration/health", "Settling"),
    ("administration/report", "Report"),
    ("administration/policy", "Policy"),
    ("administration/drift", "Drift"),
)


class BadForm(Refused):
    """What was typed cannot be taken; the message says what to do."""

    reason = "bad-form"


def groups_read(visitor: Visitor) -> frozenset[str]:
    """Return the hub groups of which a visitor may see the GPU time, by a scope that names the group."""
    begin = f"{READ_ALL}!group="
    return frozenset(scope.removeprefix(begin) for scope in visitor.scopes if scope.startswith(begin))


def _lists(page: str, link: str) -> bool:
    """Return whether a page shows by itself what a notice's link leads to, so that the notice would say it twice."""
    target, _, part = link.partition("#")
    return part == "requests" and page in (target, "administration/requests")


class PageHandler(Handler):
    """A page of the service: the login, tabs, notices, forms that cannot be forged."""

    #: The tab that is shown as current.
    tab = ""
    #: The visitor needs one of ``scopes`` to look, and one of ``writes``, which are those of REST, to send a form: a
    #: program with a token needs no secret of the page for it, so a token for reading must not do.
    scopes: tuple[str, ...] = (READ,)
    writes: tuple[str, ...] = (MANAGE, GRANT)
    owned: tuple[str, ...] = ()
    told: Sequence[dict[str, str]] = ()

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
        self.owned = await self.service.owned(self.visitor)
        self.told = await self.service.notices.of(self.visitor.name)

    @property
    def looks(self) -> bool:
        """Whether the visitor opens a page; otherwise a form is sent."""
        return self.request.method in ("GET", "HEAD")

    @property
    def now(self) -> float:
        """The ledger's time."""
        return float(self.service.ledger.books.clock())

    @property
    def zone(self) -> str:
        """The zone in which times are shown."""
        return str(self.service.ledger.books.policy().zone)

    def tabs(self) -> list[dict[str, Any]]:
        """Return the parts of the service that the visitor may open."""
        found = [("", "My GPU time")]
        if self.owned:
            found.append(("accounts", "My accounts"))
        if not self.may(READ_ALL) and groups_read(self.visitor):
            found.append(("groups", "My groups"))
        if self.may(READ_ALL, GRANT, POLICY):
            found.append(("administration", "Administration"))
        return [{"path": path, "name": name, "current": path == self.tab} for path, name in found]

    def show(self, template: str, *, heading: str, **more: Any) -> None:
        """Send a page; a notice that the last form left is shown once."""
        here = self.request.path.removeprefix(self.service.prefix)
        more.setdefault("told", [each for each in self.told if not _lists(here, each["link"])])
        if self.tab == "administration":
            here = f"administration/{here}" if here.startswith(("groups/", "requests/")) else here
            current = max(
                (path for path, _ in ADMINISTRATION if here.startswith(path)), key=len, default="administration"
            )
            sections = [{"path": path, "name": name, "current": path == current} for path, name in ADMINISTRATION]
            more = {"sections": sections, "may_grant": self.may(GRANT), "may_policy": self.may(POLICY), **more}
        page = self.page(
            f"quotas/{template}",
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
        if self.tab == "accounts" and back.removeprefix("accounts/") not in self.owned:
            self.tab = "administration"
        names = [name for name in self.request.body_arguments if name not in ("_xsrf", "confirmed", *fixed)]
        fields = [*((name, self.get_body_argument(name)) for name in names), *fixed.items()]
        self.show(
            "confirm.html",
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

    # -- forms --------------------------------------------------------------------------------------------------------

    def text(self, name: str, what: str, *, most: int = 500, needed: bool = True) -> str:
        """Return a field of the form."""
        value = self.get_body_argument(name, "").strip()
        if needed and not value:
            raise BadForm(f"{what} is missing.")
        if len(value) > most:
            raise BadForm(f"{what} has at most {most} characters.")
        return value

    def amount(self, name: str = "hours") -> int:
        """Return the milli-GPU-seconds of a field with hours."""
        said = self.text(name, "The number of GPU-hours", most=20).replace(",", ".")
        try:
            hours = Decimal(said)
        except InvalidOperation as error:
            raise BadForm(f"{said} is no number of GPU-hours. Write it like 12.5.") from error
        if not hours.is_finite() or not 0 < hours <= MOST_HOURS:
            raise BadForm(f"Give GPU-hours above 0 and up to {MOST_HOURS:,}.")
        amount = hours * GPU_HOUR
        if amount != int(amount) or hours != hours.quantize(Decimal("0.001")):
            raise BadForm("Give GPU-hours with at most three decimals.")
        return int(amount)

    @staticmethod
    @contextmanager
    def once() -> Iterator[None]:
        """Say in plain words that a form was sent before, and says something else now."""
        try:
            yield
        except KeyUsed as error:
            raise BadForm("This form has done its work already. Open its page again to send another.") from error

    def key(self) -> str:
        """Return the form's own key: sent twice, it does its work once."""
        value = self.text("key", "The form's key", most=64)
        return f"page:{self.visitor.name}:{value}"

    def number(self, name: str, otherwise: int = 0) -> int:
        """Return a whole number from the address, from 0 on."""
        said = self.get_query_argument(name, "")
        return int(said) if said.isascii() and said.isdigit() and len(said) < 19 else otherwise

    # -- the ledger ---------------------------------------------------------------------------------------------------

    async def read(self, question: Callable[[LedgerReads], T]) -> T:
        """Ask several things of one moment of the ledger, in a thread."""
        books = self.service.ledger.books

        def ask() -> T:
            with books.store.reading(books.cluster) as reads:
                return question(reads)

        return await in_store_thread(ask)

    def rows(self, entries: Any) -> list[view.Row]:
        """Return a statement's lines."""
        return view.rows(entries, self.zone)
