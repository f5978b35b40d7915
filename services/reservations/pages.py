"""Pages."""

from typing import Any

from carme_hub.services.reservations.pages_admin import PAGES as ADMIN
from carme_hub.services.reservations.pages_book import PAGES as BOOK
from carme_hub.services.reservations.pages_calendar import PAGES as CALENDAR
from carme_hub.services.reservations.pages_mine import PAGES as MINE
from carme_hub.services.reservations.pages_one import PAGES as ONE

PAGES: list[Any] = [*CALENDAR, *BOOK, *MINE, *ONE, *ADMIN]
