"""The base handler of all pages about GPU time: accounts of the visitor, notices, tabs, fields of forms."""

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

#: The largest number of GPU-hours in a form.
MAX_HOURS = 10_000_000
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
    """Return the hub groups whose GPU time a visitor may see: a scope of theirs names the group."""
    prefix = f"{READ_ALL}!group="
    return frozenset(scope.removeprefix(prefix) for scope in visitor.scopes if scope.startswith(prefix))


def _lists(page: str, link: str) -> bool:
    """Return whether a page shows the target of a notice's link itself, so that the notice is not needed there."""
    target, _, part = link.partition("#")
    return part == "requests" and page in (target, "administration/requests")


class PageHandler(pages.PageHandler):
    """A page about GPU time."""

    scopes: tuple[str, ...] = (READ,)
    write_scopes: tuple[str, ...] = (MANAGE, GRANT)
    owned_accounts: tuple[str, ...] = ()
    due_notices: Sequence[dict[str, str]] = ()

    async def prepare(self) -> None:
        """Find also the accounts that the visitor owns, and their notices."""
        await super().prepare()
        if not self._finished:
            self.owned_accounts = await self.service.owned_accounts(self.visitor)
            self.due_notices = await self.service.notices.open_for(self.visitor.name)

    @property
    def now(self) -> float:
        """The ledger's time."""
        return float(self.service.ledger.context.clock())

    @property
    def zone(self) -> str:
        """The zone in which times are shown."""
        return str(self.service.ledger.context.policy().zone)

    def tabs(self) -> list[dict[str, Any]]:
        """Return the tabs that the visitor may open."""
        found = [("", "My GPU time")]
        if self.owned_accounts:
            found.append(("accounts", "My accounts"))
        if not self.has_scope(READ_ALL) and groups_read(self.visitor):
            found.append(("groups", "My groups"))
        if self.has_scope(READ_ALL, GRANT, POLICY):
            found.append(("administration", "Administration"))
        return self.tabs_of(*found)

    def show(self, template: str, *, heading: str, **more: Any) -> None:
        """Send a page; a page of the administration has the administration's sections."""
        here = self.request.path.removeprefix(self.service.prefix)
        more.setdefault("due_notices", [each for each in self.due_notices if not _lists(here, each["link"])])
        if self.tab == "administration":
            here = f"administration/{here}" if here.startswith(("groups/", "requests/")) else here
            current = max(
                (path for path, _ in ADMINISTRATION if here.startswith(path)), key=len, default="administration"
            )
            sections = [{"path": path, "name": name, "current": path == current} for path, name in ADMINISTRATION]
            more = {
                "sections": sections,
                "may_grant": self.has_scope(GRANT),
                **more,
            }
        super().show(template, heading=heading, **more)

    def confirm(self, question: str, points: Sequence[str], button: str, *, back: str, **more: Any) -> None:
        """Ask for confirmation of something that cannot be undone; "yes" sends the same form again."""
        if self.tab == "accounts" and back.removeprefix("accounts/") not in self.owned_accounts:
            self.tab = "administration"
        super().confirm(question, points, button, back=back, **more)

    # -- forms --------------------------------------------------------------------------------------------------------

    def amount(self, name: str = "hours") -> int:
        """Return the milli-GPU-seconds of a field with hours."""
        text = self.text(name, "The number of GPU-hours", max_length=20).replace(",", ".")
        try:
            hours = Decimal(text)
        except InvalidOperation as error:
            raise BadForm(f"{text} is not a number of GPU-hours. Write it like 12.5.") from error
        if not hours.is_finite() or not 0 < hours <= MAX_HOURS:
            raise BadForm(f"Give GPU-hours above 0 and up to {MAX_HOURS:,}.")
        amount = hours * GPU_HOUR
        if amount != int(amount) or hours != hours.quantize(Decimal("0.001")):
            raise BadForm("Give GPU-hours with at most three decimals.")
        return int(amount)

    @staticmethod
    @contextmanager
    def refuse_used_key() -> Iterator[None]:
        """Refuse a form whose key was used before with other values."""
        try:
            yield
        except KeyUsed as error:
            raise BadForm("This form was sent before. Open its page again to send another one.") from error

    def key(self) -> str:
        """Return the form's idempotency key: a form that is sent twice is done once."""
        value = self.text("key", "The form's key", max_length=64)
        return f"page:{self.visitor.name}:{value}"

    # -- the ledger ---------------------------------------------------------------------------------------------------

    async def read(self, question: Callable[[LedgerReads], T]) -> T:
        """Run several queries on one snapshot of the ledger, in a thread."""
        context = self.service.ledger.context

        def ask() -> T:
            with context.store.reading(context.cluster) as reads:
                return question(reads)

        return await in_store_thread(ask)

    def rows(self, entries: Any) -> list[view.Row]:
        """Return a statement's lines."""
        return view.rows(entries, self.zone)
