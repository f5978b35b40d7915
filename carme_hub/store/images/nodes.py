"""Which node has which image, as the nodes say. Synchronous, called in a thread; the ``images`` service writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, delete, insert, select

from carme_hub.domain.images.start_times import Held
from carme_hub.store.engine import READ_ONLY, store_errors
from carme_hub.store.ledger.idempotency import upsert

from .tables import image_node as nodes
from .tables import node_image as table


@dataclass(frozen=True, slots=True)
class ImageNode:
    """What a node last said of itself: ``at`` in UTC epoch seconds; ``free``: bytes; "" and 0 = unknown."""

    node: str
    at: float
    driver: str = ""
    free: int = 0


class NodeImageStore:
    """The copies of images on the nodes of one cluster. Every method raises ``StoreError`` if the database fails."""

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine, self._cluster = engine, cluster

    def report(self, node: ImageNode, held: Sequence[Held]) -> None:
        """Store what a node has, in place of what it had; ``seconds`` and ``size`` of an earlier fetch stay known."""
        with store_errors("The database did not take what a node has"), self._engine.begin() as connection:
            where = (table.c.cluster == self._cluster, table.c.node == node.node)
            before = {row.digest: row for row in connection.execute(select(table).where(*where))}
            connection.execute(delete(table).where(*where))
            rows = [_row(self._cluster, each, before.get(each.digest)) for each in held]
            if rows:
                connection.execute(insert(table), rows)
            values = {"at": node.at, "driver": node.driver, "free": node.free}
            statement = upsert(connection, nodes).values(cluster=self._cluster, node=node.node, **values)
            connection.execute(statement.on_conflict_do_update(index_elements=["cluster", "node"], set_=values))

    def held(self) -> list[Held]:
        """Return what all nodes have, and what they could not fetch, by node."""
        query = select(table).where(table.c.cluster == self._cluster).order_by(table.c.node, table.c.digest)
        return [
            Held(row.node, row.digest, float(row.at), float(row.seconds), int(row.size), row.problem)
            for row in self._read(query)
        ]

    def nodes(self) -> list[ImageNode]:
        """Return the nodes that have said anything, by name."""
        query = select(nodes).where(nodes.c.cluster == self._cluster).order_by(nodes.c.node)
        return [ImageNode(row.node, float(row.at), row.driver, int(row.free)) for row in self._read(query)]

    def _read(self, statement: Any) -> list[Any]:
        options = {READ_ONLY: True}
        with (
            store_errors("Which node has which image cannot be read"),
            self._engine.connect().execution_options(**options) as connection,
        ):
            return list(connection.execute(statement))


def _row(cluster: str, held: Held, before: Any) -> dict[str, Any]:
    known = before if before is not None and not before.problem and not held.problem else None
    return {
        "cluster": cluster,
        "node": held.node,
        "digest": held.digest,
        "at": held.at or (known.at if known is not None else 0.0),
        "seconds": held.seconds or (known.seconds if known is not None else 0.0),
        "size": held.size or (known.size if known is not None else 0),
        "problem": held.problem,
    }
