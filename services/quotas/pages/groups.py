"""Hub groups for those who may read them: members, what they used, their share, and what they asked for."""

from __future__ import annotations

from urllib.parse import quote

from tornado.web import HTTPError

from carme_hub.domain.quotas.rules import Quota
from carme_hub.services.hub_users import LOOKED_AT
from carme_hub.services.quotas.application import groups, view
from carme_hub.services.quotas.pages.base import PageHandler, groups_read
from carme_hub.services.quotas.pages.requests import open_requests, sources
from carme_hub.services.quotas.scopes import READ, READ_ALL

#: Groups that are listed at once; the others are found by their name.
MOST = 500
#: Whatever the hub calls a group; it may have a slash in it, which the address has as %2F.
_NAME = r"([^/]{1,255})"


class GroupsPage(PageHandler):
    """What the list and one group have in common."""

    scopes: tuple[str, ...] = (READ, READ_ALL)

    def see(self, group: str | None) -> None:
        """Refuse who may not read this group, or (None) any."""
        self.tab = "administration" if self.may(READ_ALL) else "groups"
        mine = groups_read(self.visitor)
        if not self.may(READ_ALL) and (group not in mine if group else not mine):
            raise HTTPError(404, log_message="There is no such group here, or it is not yours to see.")

    async def members(self) -> dict[str, list[str]]:
        """Return the users of every group that the visitor may read; none while the hub is silent."""
        await self.service.roster.refresh(LOOKED_AT)
        known = groups.people_by_group(self.service.roster.people.values())
        if self.may(READ_ALL):
            return known
        return {name: known.get(name, []) for name in sorted(groups_read(self.visitor))}

    @property
    def silent(self) -> bool:
        """Whether the hub has not said who is in which group."""
        return not self.service.roster.people


class GroupsHandler(GroupsPage):
    """The groups that the visitor may read."""

    async def get(self) -> None:
        """List them; those that the policy has rules about come first."""
        self.see(None)
        known, policy = await self.members(), self.service.ledger.context.policy()
        search = self.get_query_argument("q", "").strip()[:64]
        if self.tab == "groups" and len(known) == 1:
            self.redirect(f"{self.service.prefix}groups/{quote(next(iter(known)), safe='')}")
            return
        found = [
            (groups.rules_of(policy, name, self.now), name, users)
            for name, users in known.items()
            if search.casefold() in name.casefold()
        ]
        found.sort(key=lambda each: (not each[0], each[1]))
        self.show(
            "groups.html",
            heading="Groups",
            search=search,
            silent=self.silent,
            groups=[
                {
                    "name": name,
                    "path": f"groups/{quote(name, safe='')}",
                    "members": len(users),
                    "rules": ", ".join(_limit(rule) for rule in rules),
                }
                for rules, name, users in found[:MOST]
            ],
            count=len(found),
            total=len(known),
        )


class GroupHandler(GroupsPage):
    """One group."""

    async def get(self, group: str) -> None:
        """Show it."""
        self.see(group)
        known = await self.members()
        if group not in known and not self.silent:
            raise HTTPError(404, log_message=f"There is no group {group}, or nobody is in it.")
        users, context, now = known.get(group, []), self.service.ledger.context, self.now
        asked = [each for each in await open_requests(self.service) if each.user in users]
        found = await self.read(lambda reads: groups.sections(context, reads, group, users, now))
        self.show(
            "group.html",
            heading=f"Group {group}",
            group=group,
            silent=self.silent,
            group_sections=found if users else [],
            count=len(users),
            requests=asked,
            sources=await sources(self, asked),
            zone=self.zone,
        )


def _limit(quota: Quota) -> str:
    whom = "shared" if quota.together else "each"
    title = view.window_title(quota, 0, "UTC") if quota.window.value != "month" else "This month"
    return f"{view.hours(quota.gpu_time or 0)} {whom} ({title[:1].lower()}{title[1:]})"


PAGES: list[tuple[str, type[PageHandler]]] = [
    ("groups", GroupsHandler),
    ("administration/groups", GroupsHandler),
    (f"groups/{_NAME}", GroupHandler),
]
