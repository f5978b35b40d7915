"""The table of paths and handlers of images that users build."""

from tornado import web

from carme_hub.spawners.handlers.images.pages import HANDLERS as PAGES
from carme_hub.spawners.handlers.images.rest import HANDLERS as REST

HANDLERS: list[tuple[str, type[web.RequestHandler]]] = [*PAGES, *REST]
