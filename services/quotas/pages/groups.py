"""The pages of hub groups for those who may read them: members, their use and shares, and their requests."""

from __future__ import annotations

from urllib.parse import quote

from tornado.web import HTTPError

from carme_hub.domain.quotas.rules import Quota
from carme_hub.services.hub_users import PAGE_MAX_AGE
from carme_hub.services.quotas.application import groups, view
from carme_hub.services.quotas.pages.base import PageHandler, groups_read
from carme_hub.services.quotas.pages.requests import open_requests, sources
from carme_hub.services.quotas.scopes import READ, READ_ALL

#: Groups in the list; the search by name finds the others.
PAGE_SIZE = 500
#: The name of a hub group; it may contain a slash, which the URL has as %2F.
_NAME = r"([^/]{1,255})"


class GroupsPage(PageHandler):
    """The base of the list and of one group."""

    scopes: tuple[str, ...] = (READ, READ_ALL)

    def check_access(self, group: str | None) -> None:
        """Refuse visitors who may not read this group, or (None) any group."""
        self.tab = "administration" if self.has_scope(READ_ALL) else "groups"
        mine = groups_read(self.visitor)
        if not self.has_scope(READ_ALL) and (group not in mine if group else not mine):
            raise HTTPError(404, log_message="There is no such group, or you may not see it.")

    async def members(self) -> dict[str, list[str]]:
        """Return the users of every group that the visitor may read; none before the hub has answered."""
        await self.service.hub_users.refresh(PAGE_MAX_AGE)
        known = groups.people_by_group(self.service.hub_users.people.values())
        if self.has_scope(READ_ALL):
            return known
        return {name: known.get(name, []) for name in sorted(groups_read(self.visitor))}

    @property
    def silent(self) -> bool:
        """Whether the hub has not said who is in which group."""
        return not self.service.hub_users.people


class GroupsHandler(GroupsPage):
    """The groups that the visitor may read."""

    async def get(self) -> None:
        """List the groups; those with rules in the policy come first."""
        self.check_access(None)
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
                for rules, name, users in found[:PAGE_SIZE]
            ],
            count=len(found),
            total=len(known),
        )


class GroupHandler(GroupsPage):
    """One group."""

    async def get(self, group: str) -> None:
        """Show the group."""
        self.check_access(group)
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
    scope = "shared" if quota.together else "each"
    title = view.window_title(quota, 0, "UTC") if quota.window.value != "month" else "This month"
    return f"{view.hours(quota.gpu_time or 0)} {scope} ({title[:1].lower()}{title[1:]})"


PAGES: list[tuple[str, type[PageHandler]]] = [
    ("groups", GroupsHandler),
    ("administration/groups", GroupsHandler),
    (f"groups/{_NAME}", GroupHandler),
]
