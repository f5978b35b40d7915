"""The table of paths and page handlers of the images service."""

from typing import Any

from carme_hub.services.images.pages.catalogue import PAGES as CATALOGUE
from carme_hub.services.images.pages.nodes import PAGES as NODES
from carme_hub.services.images.pages.one import PAGES as ONE
from carme_hub.services.images.pages.own import PAGES as OWN

PAGES: list[Any] = [*CATALOGUE, *ONE, *NODES, *OWN]
