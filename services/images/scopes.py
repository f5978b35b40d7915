"""The scopes of images, in one place for REST and pages; ``carme_hub.config`` describes them to the hub."""

from __future__ import annotations

#: See the images that one is offered, and which nodes have them.
READ = "custom:carme:images:read"
#: Offer one's own images to one's groups.
OFFER = "custom:carme:images:offer"
#: See all images, to whom they are offered, and whose sessions use them.
READ_ALL = "custom:carme:images:read:all"
#: Offer images to anybody, and retire them.
MANAGE = "custom:carme:images:manage"
#: Say what a node has, and ask what it needs: for the program on nodes, and for nobody else.
NODES = "custom:carme:images:nodes"
