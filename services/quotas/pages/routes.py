"""The table of paths and page handlers of the quotas service."""

from typing import Any

from carme_hub.services.quotas.pages.accounts import PAGES as ACCOUNTS
from carme_hub.services.quotas.pages.admin import PAGES as ADMIN
from carme_hub.services.quotas.pages.groups import PAGES as GROUPS
from carme_hub.services.quotas.pages.mine import PAGES as MINE
from carme_hub.services.quotas.pages.policy import PAGES as POLICY
from carme_hub.services.quotas.pages.report import PAGES as REPORT
from carme_hub.services.quotas.pages.requests import PAGES as REQUESTS
from carme_hub.services.quotas.pages.slurm_limits import PAGES as DRIFT
from carme_hub.services.quotas.pages.transfers import PAGES as TRANSFERS

PAGES: list[Any] = [*MINE, *ACCOUNTS, *TRANSFERS, *GROUPS, *ADMIN, *REQUESTS, *REPORT, *POLICY, *DRIFT]
