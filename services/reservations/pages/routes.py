"""URL handlers of the reservations service's pages."""

from typing import Any

from carme_hub.services.reservations.pages.admin import PAGES as ADMIN
from carme_hub.services.reservations.pages.book import PAGES as BOOK
from carme_hub.services.reservations.pages.booking import PAGES as ONE
from carme_hub.services.reservations.pages.calendar import PAGES as CALENDAR
from carme_hub.services.reservations.pages.mine import PAGES as MINE

PAGES: list[Any] = [*CALENDAR, *BOOK, *MINE, *ONE, *ADMIN]
