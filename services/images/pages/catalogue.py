"""The catalogue: the images that the visitor is offered, found by words, and started in the form."""

from __future__ import annotations

from carme_hub.services.images.application import view
from carme_hub.services.images.pages.base import ImagesPage


class CatalogueHandler(ImagesPage):
    """The list of images."""

    async def get(self) -> None:
        """Show a page of it."""
        words = self.get_query_argument("q", "").strip()[:200]
        site, visitor = await self.service.site(), self.visitor
        every = list(site.view.images.values())
        seen = view.visible(every, visitor.name, visitor.groups, everything=self.sees_all, now=site.now)
        found, count, page = view.page_of(seen, words, self.number("page", 1))
        rows = [view.row_of(each, site, visitor.name, visitor.groups, everything=self.sees_all) for each in found]
        keeper = self.service.keeper
        self.show(
            "catalogue.html",
            heading="Images",
            rows=rows,
            words=words,
            count=count,
            every=len(seen),
            page=page,
            pages=max(1, -(-count // view.PAGE)),
            links={row.name: view.try_link(self.hub_auth.hub_prefix, row.name, row.slug) for row in rows},
            problems=keeper.problems if self.sees_all else {},
            looked=view.ago(site.now - keeper.looked) if keeper.looked else "",
        )


PAGES: list[tuple[str, type[ImagesPage]]] = [("", CatalogueHandler)]
