"""What the tests of the home page share: its template, and a user with servers as far as the page looks at them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from affected_parts import ID
from jinja2 import Environment, FileSystemLoader

from carme_hub.spawners.handlers.pages import templates_path

TIME = {"session": ID, "iso": "2026-11-27T12:00:00", "said": "12:00"}


class Server:
    """A spawner as far as the page looks at it."""

    name, active, ready, pending, uncertainty, virtual = "", True, True, "", "", False
    time_left: Any = TIME
    profile_list: Any = [{"slug": "gpu", "display_name": "Big GPUs"}]
    orm_spawner = SimpleNamespace(last_activity=None, display_name=None)

    def __init__(self, **changes: Any) -> None:
        self.__dict__.update(changes)


def user(*servers: Server) -> Any:
    return SimpleNamespace(
        name="sam",
        spawners={server.name: server for server in servers},
        server_url=lambda name: f"/user/sam/{name}",
        progress_url=lambda name: f"/progress/{name}",
        escaped_name="sam",
    )


def page(**values: Any) -> str:
    environment = Environment(loader=FileSystemLoader(templates_path()), autoescape=True)
    given = {"base_url": "/hub/", "xsrf": "x<", "active_servers": set(), "ended": [], "cards": [], **values}
    return " ".join(environment.get_template("carme_sessions.html").render(**given).split())
