"""The table of paths and page handlers of the folders service."""

from typing import Any

from carme_hub.services.folders.pages.folder import PAGES as FOLDER
from carme_hub.services.folders.pages.lists import PAGES as LISTS

PAGES: list[Any] = [*LISTS, *FOLDER]
