"""The table of paths and page handlers of the activity service."""

from typing import Any

from carme_hub.services.activity.pages.jobs import PAGES as JOBS
from carme_hub.services.activity.pages.mail import PAGES as MAIL
from carme_hub.services.activity.pages.unused import PAGES as UNUSED

PAGES: list[Any] = [*JOBS, *UNUSED, *MAIL]
