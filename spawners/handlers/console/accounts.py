"""Pages of accounts for their owners: ``/hub/carme/accounts``, and one for each; REST has the same.

An owner is a coordinator of the account in Slurm. Administrators with the console see all accounts. For anybody else
there is no such account.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Any

from jupyterhub.apihandlers.base import APIHandler
from jupyterhub.handlers.base import BaseHandler
from jupyterhub.utils import url_escape_path, url_path_join
from tornado import web

from carme_hub.domain.administration.scopes import ACCOUNTS_READ, READ
from carme_hub.domain.wording import duration
from carme_hub.errors import StoreError
from carme_hub.spawners.console.accounts import DAYS, AccountUse, EndedRow, account_of, account_use
from carme_hub.spawners.console.rows import STATES, SessionRow, Wanted, page_of
from carme_hub.spawners.form.durations import clock
from carme_hub.spawners.handlers.console.base import may
from carme_hub.spawners.handlers.console.lists import all_sessions
from carme_hub.spawners.hub.shared import HubContext, started_hub

ACCOUNTS, ACCOUNT = r"/carme/accounts", r"/carme/accounts/([^/]+)"
API = r"/api/carme/accounts/([^/]+)/sessions"
_NONE = "There is no such account, or you are none of its owners."


def owned_accounts(hub: HubContext | None, user: Any) -> tuple[str, ...]:
    """Return the accounts whose owner a visitor is."""
    if hub is None or user is None or user.kind != "user":
        return ()
    return hub.associations.coordinates(user.name)


def may_see(handler: Any, hub: HubContext, account: str) -> bool:
    """Return whether a visitor may see an account."""
    if may(handler, ACCOUNTS_READ) and account in owned_accounts(hub, handler.current_user):
        return True
    return may(handler, READ) and account in hub.associations.accounts()


async def open_rows(handler: Any, hub: HubContext, account: str) -> list[SessionRow]:
    """Return the open sessions of an account."""

    def default(user: str) -> str:
        return next(iter(hub.associations.accounts_of(user)), "")

    ours = {each.id for each in hub.registry.open_sessions() if account_of(each, default) == account}
    return [row for row in await all_sessions(handler, hub) if row.id in ours]


class AccountsHandler(BaseHandler):
    """The accounts of an owner."""

    @web.authenticated
    async def get(self) -> None:
        """Show the account where there is one, and list them otherwise."""
        hub = _checked_hub()
        await hub.associations.refresh()
        names = owned_accounts(hub, self.current_user) if may(self, ACCOUNTS_READ) else ()
        if may(self, READ):
            names = hub.associations.accounts()
        if len(names) == 1:
            self.redirect(url_path_join(self.hub.base_url, "carme/accounts", url_escape_path(names[0])))
            return
        self.set_header("Cache-Control", "no-store")
        html = await self.render_template("console/accounts.html", heading="Accounts", names=names)
        self.finish(html)


class AccountHandler(BaseHandler):
    """One account."""

    @web.authenticated
    async def get(self, account: str) -> None:
        """Show its sessions, its members and what they used."""
        hub = _checked_hub()
        await hub.associations.refresh()
        if not may_see(self, hub, account):
            raise web.HTTPError(404, _NONE)
        virtual, now = bool(getattr(self.current_user.spawner, "virtual", False)), time.time()
        problem, found = "", AccountUse((), ())
        try:
            found = await account_use(hub, account, virtual=virtual)
        except StoreError as error:
            hub.log.warning("The use of account %s cannot be read: %s", account, error)
            problem = "The database does not answer, so what was used is missing here. Look again in a moment."
        page = page_of(found.ended, Wanted(sort="-ended", page=_number(self.get_query_argument("page", "1"))))
        number = _number(self.get_query_argument("now", "1"))
        now_page = page_of(await open_rows(self, hub, account), Wanted(sort="user", page=number))
        self.set_header("Cache-Control", "no-store")
        html = await self.render_template(
            "console/account.html",
            heading=f"Account {account}",
            account=account,
            days=DAYS,
            virtual=virtual,
            problem=problem,
            members=found.members,
            left_out=found.left_out,
            page=page,
            now=now_page,
            open=[_open_words(row, now) for row in now_page.rows],
            ended=[{"row": row, "what": _ended_words(row, now)} for row in page.rows],
        )
        self.finish(html)


def _open_words(row: SessionRow, now: float) -> dict[str, str]:
    return {
        "user": row.user,
        "what": f"{row.kind}{f' “{row.server}”' if row.server else ''}",
        "profile": row.profile,
        "state": STATES[row.state],
        "node": row.node,
        "gpus": f"{row.gpus} × {row.gpu_type}" if row.gpus else "",
        "use": f"{row.use:.0f} %" if row.use is not None else "not known" if row.gpus else "",
        "idle": clock(row.idle_since, now) if row.idle_since else "",
        "ends": clock(row.ends, now) if row.ends else "",
    }


def _ended_words(row: EndedRow, now: float) -> str:
    gpus = f", {row.gpus} × {row.gpu_type}" if row.gpus else ""
    ran = f" after {duration(round(row.seconds / 60) * 60)}" if row.seconds else ""
    return f"{row.profile}{gpus}: ended {clock(row.ended, now)}{ran}"


class AccountApi(APIHandler):
    """The same for programs."""

    async def get(self, account: str) -> None:
        """Send an account's sessions, members and what they used."""
        hub = started_hub()
        if self.current_user is None:
            raise web.HTTPError(403)
        if hub is None:
            raise web.HTTPError(503, "The hub is starting, or has no Slurm.")
        await hub.associations.refresh()
        if not may_see(self, hub, account):
            raise web.HTTPError(404, _NONE)
        virtual = bool(getattr(getattr(self.current_user, "spawner", None), "virtual", False))
        try:
            found = await account_use(hub, account, virtual=virtual)
        except StoreError as error:
            raise web.HTTPError(503, "The database does not answer.") from error
        page = page_of(found.ended, Wanted(sort="-ended", page=_number(self.get_query_argument("page", "1"))))
        self.set_header("Cache-Control", "no-store")
        number = _number(self.get_query_argument("now", "1"))
        now_page = page_of(await open_rows(self, hub, account), Wanted(sort="user", page=number))
        answer = {
            "account": account,
            "days": DAYS,
            "open": [asdict(row) for row in now_page.rows],
            "open_count": now_page.count,
            "members": [asdict(each) for each in found.members],
            "ended": [asdict(row) for row in page.rows],
            "page": page.number,
            "pages": page.pages,
            "left_out": found.left_out,
        }
        self.finish(json.dumps(answer))


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 1


def _checked_hub() -> HubContext:
    hub = started_hub()
    if hub is None or hub.administration is None:
        raise web.HTTPError(404, "Accounts are there on a hub with Slurm, once it has started.")
    return hub


HANDLERS: list[tuple[str, Any]] = [(ACCOUNTS, AccountsHandler), (ACCOUNT, AccountHandler), (API, AccountApi)]
