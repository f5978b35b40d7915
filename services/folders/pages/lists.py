"""The pages of the visitor's folders and invitations, of datasets, and of all folders; the form of a new folder."""

from __future__ import annotations

from tornado.web import HTTPError

from carme_hub.services.folders.pages.base import FolderPage
from carme_hub.services.folders.scopes import ADMIN

#: Folders on one page of all, and of datasets; a search finds the others.
MOST_ROWS = 200


class MineHandler(FolderPage):
    """The visitor's folders, those shared with them, and invitations."""

    async def get(self) -> None:
        """Show them, by name; invitations first."""
        rows = [self.row(one) for one in await self.service.folders.of(self.actor)]
        invited = [row for row in rows if row["invitations"] or row["handover"] == self.visitor.name]
        self.show(
            "mine.html",
            heading="My folders",
            invited=invited,
            rows=[row for row in rows if row not in invited or row["my_role"] or row["managed"]],
            accounts=self.actor.coordinates,
            roots=list(self.service.settings.roots),
        )

    async def post(self) -> None:
        """Make a folder."""
        name = self.text("name", "The name", max_length=63)
        more = {field: self.text(field, field, required=False) for field in ("account", "root", "description")}
        found = await self.service.folders.create(name, self.actor, **more)
        self.log_write("made folder %s", name)
        self.done(f"The folder {name} is made: {found.folder.problem or 'invite people to it.'}", f"folder/{name}")


class DatasetsHandler(FolderPage):
    """Published datasets."""

    tab = "datasets"

    async def get(self) -> None:
        """Show those with all the words of the search."""
        words = self.get_query_argument("words", "")[:200]
        found = await self.service.folders.datasets(words, most=MOST_ROWS + 1)
        rows = [self.row(one) for one in found[:MOST_ROWS]]
        kept = {one.folder.id for one in await self.service.folders.of(self.actor)}
        more = len(found) > MOST_ROWS
        self.show("datasets.html", heading="Datasets", rows=rows, words=words, kept=kept, more=more)


class AllHandler(FolderPage):
    """Everybody's folders, for administrators."""

    tab = "all"

    async def get(self) -> None:
        """Show those with all the words of the search, with what is wrong first."""
        if not self.has_scope(ADMIN):
            raise HTTPError(403, log_message="Administrators see everybody's folders.")
        words = self.get_query_argument("words", "")[:200]
        found = await self.service.folders.every(words)
        found.sort(key=lambda one: (not one.folder.drift, not one.folder.problem, one.folder.name))
        unknown = self.service.reconciler.unknown_on_disk
        self.show(
            "all.html",
            heading="All folders",
            rows=[self.row(one) for one in found[:MOST_ROWS]],
            count=len(found),
            words=words,
            unknown=[f"{root}/{id}" for root, ids in unknown.items() for id in ids],
            problem=self.service.reconciler.problem,
        )


PAGES: list[tuple[str, type[FolderPage]]] = [("", MineHandler), ("datasets", DatasetsHandler), ("all", AllHandler)]
