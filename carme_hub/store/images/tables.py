"""The tables of images. Migrations ``carme0018`` and ``carme0022`` (of builds) create them."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Column, Float, Index, String, Table, Text, text

from carme_hub.store.tables import metadata

#: The name of a user's image is free again once its build has failed or was removed.
NAMED = "state IN ('building', 'ready')"

#: Images as they were last found in the stores (``domain.images.offers.CatalogueImage``); ``about``: what is known.
#: ``gone``: since when it is not there, 0 = it is.
image = Table(
    "image",
    metadata,
    Column("cluster", String(64), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("digest", String(80), nullable=False, default=""),
    Column("about", JSON, nullable=False),
    Column("seen", Float, nullable=False),
    Column("gone", Float, nullable=False, default=0.0),
)

#: To whom an image is offered, by whom; ``kind``: everybody, group or user.
image_offer = Table(
    "image_offer",
    metadata,
    Column("cluster", String(64), primary_key=True),
    Column("image", String(64), primary_key=True),
    Column("kind", String(16), primary_key=True),
    Column("name", String(255), primary_key=True),
    Column("actor", String(255), nullable=False),
    Column("at", Float, nullable=False),
)

#: From when on an image is not offered; ``told``: when those whose sessions have it were told, 0 = not yet.
image_retirement = Table(
    "image_retirement",
    metadata,
    Column("cluster", String(64), primary_key=True),
    Column("image", String(64), primary_key=True),
    Column("date", Float, nullable=False),
    Column("reason", Text, nullable=False),
    Column("actor", String(255), nullable=False),
    Column("at", Float, nullable=False),
    Column("told", Float, nullable=False, default=0.0),
)

#: Which node has which image, as the nodes say; ``problem``: why it has not, "" = it has.
node_image = Table(
    "node_image",
    metadata,
    Column("cluster", String(64), primary_key=True),
    Column("node", String(255), primary_key=True),
    Column("digest", String(80), primary_key=True),
    Column("at", Float, nullable=False),
    Column("seconds", Float, nullable=False, default=0.0),
    Column("size", BigInteger, nullable=False, default=0),
    Column("problem", Text, nullable=False, default=""),
)

#: What a node last said of itself: when, its GPU driver, and the bytes that are free for images.
image_node = Table(
    "image_node",
    metadata,
    Column("cluster", String(64), primary_key=True),
    Column("node", String(255), primary_key=True),
    Column("at", Float, nullable=False),
    Column("driver", String(40), nullable=False, default=""),
    Column("free", BigInteger, nullable=False, default=0),
)

#: Seconds from the start of a session's job to the call of its server, by image.
image_start = Table(
    "image_start",
    metadata,
    Column("session", String(36), primary_key=True),
    Column("cluster", String(64), nullable=False),
    Column("image", String(64), nullable=False),
    Column("at", Float, nullable=False),
    Column("seconds", Float, nullable=False),
    Index("ix_image_start_image", "cluster", "image", "at"),
)

#: Images that users build (``domain.images.builds.Build``); ``id`` is that of the batch job that builds it.
image_build = Table(
    "image_build",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("cluster", String(64), nullable=False),
    Column("user", String(255), nullable=False),
    Column("name", String(64), nullable=False),
    Column("base", String(64), nullable=False),
    Column("base_digest", String(80), nullable=False, default=""),
    Column("kind", String(16), nullable=False),
    Column("text", Text, nullable=False),
    Column("description", Text, nullable=False, default=""),
    Column("state", String(16), nullable=False),
    Column("created", Float, nullable=False),
    Column("ended", Float, nullable=False, default=0.0),
    Column("used", Float, nullable=False, default=0.0),
    Column("told", Float, nullable=False, default=0.0),
    Column("days", Float, nullable=False),
    Column("problem", Text, nullable=False, default=""),
    Column("wanted", JSON(none_as_null=True)),
    Column("published", String(64), nullable=False, default=""),
    Index("ix_image_build_user", "cluster", "user", "created"),
    Index(
        *("uq_image_build_name", "cluster", "name"),
        unique=True,
        sqlite_where=text(NAMED),
        postgresql_where=text(NAMED),
    ),
)
