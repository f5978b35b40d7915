"""The board of nodes: which node has which image, how long it took to fetch, and what bookings need there soon."""

from __future__ import annotations

from carme_hub.services.images.application import board, view
from carme_hub.services.images.pages.base import ImagesPage
from carme_hub.store.threads import in_store_thread


class NodesHandler(ImagesPage):
    """The board."""

    tab = "nodes"

    async def get(self) -> None:
        """Show it."""
        service = self.service
        names, held, about, wanted = await board.read(service)
        images = {each.digest: each.name for each in await in_store_thread(service.images.images) if each.digest}
        now, most_age = service.clock(), service.settings.report_minutes * 60
        rows = [
            view.node_row(node, about.get(node), held.get(node, []), images, wanted.get(node, []), now, most_age)
            for node in names
        ]
        copies = bool(service.settings.node_store)
        self.show(
            "nodes.html",
            heading="Which node has which image",
            rows=[row for row in rows if row.said or row.copies or row.wanted],
            silent=[row.node for row in rows if not (row.said or row.copies or row.wanted)],
            summary=view.by_image(rows) if copies else [],
            nodes=len(rows),
            keeps_copies=copies,
            known=await service.nodes() is not None,
            hours=round(service.settings.prefetch_hours),
            has_calendar=service.calendar is not None,
        )


PAGES: list[tuple[str, type[ImagesPage]]] = [("nodes", NodesHandler)]
