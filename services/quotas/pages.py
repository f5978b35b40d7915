"""Pages."""

from typing import Any

from carme_hub.services.quotas.pages_accounts import PAGES as ACCOUNTS
from carme_hub.services.quotas.pages_admin import PAGES as ADMIN
from carme_hub.services.quotas.pages_drift import PAGES as DRIFT
from carme_hub.services.quotas.pages_groups import PAGES as GROUPS
from carme_hub.services.quotas.pages_mine import PAGES as MINE
from carme_hub.services.quotas.pages_moves import PAGES as MOVES
from carme_hub.services.quotas.pages_policy import PAGES as POLICY
from carme_hub.services.quotas.pages_report import PAGES as REPORT
from carme_hub.services.quotas.pages_requests import PAGES as REQUESTS

PAGES: list[Any] = [*MINE, *ACCOUNTS, *MOVES, *GROUPS, *ADMIN, *REQUESTS, *REPORT, *POLICY, *DRIFT]
