"""What all pages about GPU time have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar

from carme_hub.accounting.grants import KeyUsed
from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.services import pages
from carme_hub.services.handlers import Visitor
from carme_hub.services.pages import BadForm
from carme_hub.services.quotas.application import view
from carme_hub.services.quotas.scopes import GRANT, MANAGE, POLICY, READ, READ_ALL
from carme_hub.store.ledger.writes import LedgerReads
from carme_hub.store.threads import in_store_thread

__all__ = ["BadForm", "PageHandler", "groups_read"]

T = TypeVar("T")

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


def groups_read(visitor: Visitor) -> frozenset[str]:
    """Return the hub groups of which a visitor may see the GPU time, by a scope that names the group."""
    begin = f"{READ_ALL}!group="
    return frozenset(scope.removeprefix(begin) for scope in visitor.scopes if scope.startswith(begin))


def _lists(page: str, link: str) -> bool:
    """Return whether a page shows by itself what a notice's link leads to, so that the notice would say it twice."""
    target, _, part = link.partition("#")
    return part == "requests" and page in (target, "administration/requests")


class PageHandler(pages.PageHandler):
    """A page about GPU time."""

    scopes: tuple[str, ...] = (READ,)
    writes: tuple[str, ...] = (MANAGE, GRANT)
    owned: tuple[str, ...] = ()
    told: Sequence[dict[str, str]] = ()

    async def prepare(self) -> None:
        """Find out also what the visitor owns, and what they are to be told."""
        await super().prepare()
        if not self._finished:
            self.owned = await self.service.owned(self.visitor)
            self.told = await self.service.notices.of(self.visitor.name)

    @property
    def now(self) -> float:
        """The ledger's time."""
        return float(self.service.ledger.context.clock())

    @property
    def zone(self) -> str:
        """The zone in which times are shown."""
        return str(self.service.ledger.context.policy().zone)

    def tabs(self) -> list[dict[str, Any]]:
        """Return the parts of the service that the visitor may open."""
        found = [("", "My GPU time")]
        if self.owned:
            found.append(("accounts", "My accounts"))
        if not self.may(READ_ALL) and groups_read(self.visitor):
            found.append(("groups", "My groups"))
        if self.may(READ_ALL, GRANT, POLICY):
            found.append(("administration", "Administration"))
        return self.tabs_of(*found)

    def show(self, template: str, *, heading: str, **more: Any) -> None:
        """Send a page, with the parts of the administration where it is one of them."""
        here = self.request.path.removeprefix(self.service.prefix)
        more.setdefault("told", [each for each in self.told if not _lists(here, each["link"])])
        if self.tab == "administration":
            here = f"administration/{here}" if here.startswith(("groups/", "requests/")) else here
            current = max(
                (path for path, _ in ADMINISTRATION if here.startswith(path)), key=len, default="administration"
            )
            sections = [{"path": path, "name": name, "current": path == current} for path, name in ADMINISTRATION]
            more = {"sections": sections, "may_grant": self.may(GRANT), "may_policy": self.may(POLICY), **more}
        super().show(template, heading=heading, **more)

    def confirm(self, question: str, points: Sequence[str], button: str, *, back: str, **more: Any) -> None:
        """Ask once more before something that cannot be undone; "yes" sends the same form again."""
        if self.tab == "accounts" and back.removeprefix("accounts/") not in self.owned:
            self.tab = "administration"
        super().confirm(question, points, button, back=back, **more)

    # -- forms --------------------------------------------------------------------------------------------------------

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

    # -- the ledger ---------------------------------------------------------------------------------------------------

    async def read(self, question: Callable[[LedgerReads], T]) -> T:
        """Ask several things of one moment of the ledger, in a thread."""
        context = self.service.ledger.context

        def ask() -> T:
            with context.store.reading(context.cluster) as reads:
                return question(reads)

        return await in_store_thread(ask)

    def rows(self, entries: Any) -> list[view.Row]:
        """Return a statement's lines."""
        return view.rows(entries, self.zone)
