"""All handlers of the console, of messages and of account owners; ``handlers.pages`` puts them among the hub's."""

from __future__ import annotations

from typing import Any

from carme_hub.spawners.handlers.console.accounts import HANDLERS as ACCOUNTS
from carme_hub.spawners.handlers.console.act_forms import HANDLERS as FORMS
from carme_hub.spawners.handlers.console.incidents import HANDLERS as INCIDENTS
from carme_hub.spawners.handlers.console.lists import HANDLERS as LISTS
from carme_hub.spawners.handlers.console.logs import HANDLERS as LOGS
from carme_hub.spawners.handlers.console.node_updates import HANDLERS as NODE_UPDATES
from carme_hub.spawners.handlers.console.rest import HANDLERS as REST
from carme_hub.spawners.handlers.console.seen import HANDLERS as SEEN
from carme_hub.spawners.handlers.console.users import HANDLERS as USERS
from carme_hub.spawners.handlers.status import HANDLERS as STATUS

HANDLERS: list[tuple[str, Any]] = [
    *(*LISTS, *FORMS, *LOGS, *SEEN, *ACCOUNTS, *NODE_UPDATES, *REST),
    *(*INCIDENTS, *USERS, *STATUS),
]
