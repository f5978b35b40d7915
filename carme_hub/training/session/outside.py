"""The hub for somebody outside of a session: on a login node, or on a laptop, with a token of the page ``/hub/token``.

A batch job is all that there is to request: it has the profile and the image that the user options name. What is
needed to ask about it later (never the token) is kept with the run.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from .companions import TIME_LIMIT, Hub, Refused

#: As for ``carme-hub session`` (``carme_hub.cli.hub_command``).
TOKEN_VARIABLE, ADDRESS_VARIABLE = "JUPYTERHUB_API_TOKEN", "JUPYTERHUB_API_URL"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
HOW = (
    "There is no session of Carme Hub here. Name the hub with --hub https://…, or JUPYTERHUB_API_URL, and give a token "
    "of its page /hub/token by --token-file, or JUPYTERHUB_API_TOKEN."
)


@dataclass(frozen=True, slots=True)
class Access:
    """How the hub is reached.

    Attributes:
        address: of the hub as in a browser, or of its API. token_file: with the token; "" = it is in the environment.
        ca: file with the authorities to trust; "" = the system's. user: whose token it is; "" = not known yet.
        options: user options of a server, by name, for a batch job.
        host: name of the machine for which a loopback address was meant, "" = this one.
    """

    address: str
    token_file: str = ""
    ca: str = ""
    user: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    host: str = ""

    def connect(self, environ: Mapping[str, str] = os.environ, time_limit: float = TIME_LIMIT) -> Hub:
        """Return the hub's interface for the batch jobs of the token's user.

        Raises:
            NoHub: it does not answer. Refused: the address, the file or the token is no good; the message says why.
        """
        api = api_address(self.address)
        if self.host and self.host != socket.gethostname() and urlsplit(api).hostname in _LOOPBACK:
            raise Refused(f"{self.address} was the hub for {self.host}; here it may be anybody's program.")
        token = self._token(environ)
        hub = Hub(api, token, authority=self.ca, time_limit=time_limit, options=self.options)
        user = self.user
        if not user:
            found = hub.ask("GET", "/user")
            if found.get("kind") != "user":
                raise Refused("The token is not a user's. Take one of the hub's page /hub/token.")
            user = str(found["name"])
        return replace(hub, url=f"{api}/carme/users/{quote(user, safe='')}/batch-jobs", user=user)

    def kept(self, user: str) -> dict[str, str]:
        """Return what a later command needs, as JSON values; a relative path would mean another file then."""
        files = {"token_file": self.token_file, "ca": self.ca}
        whole = {name: str(Path(each).expanduser().absolute()) if each else "" for name, each in files.items()}
        return {"address": self.address, "user": user, "host": socket.gethostname(), **whole}

    def _token(self, environ: Mapping[str, str]) -> str:
        if not self.token_file:
            token = environ.get(TOKEN_VARIABLE, "").strip()
            if not token:
                raise Refused(HOW)
            return token
        path = Path(self.token_file).expanduser()
        try:
            mode = path.stat().st_mode
            text = path.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise Refused(f"The token cannot be read from {path}: {error}") from error
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise Refused(
                f"Others can read the token in {path}. Make it yours alone: chmod 600 {path}; take a new token."
            )
        if not text or not text.isascii() or not text.isprintable() or " " in text:
            raise Refused(f"{path} has no token. Make one at the hub's page /hub/token.")
        return text


def access(hub: str, token_file: str, ca: str, options: Mapping[str, str], environ: Mapping[str, str]) -> Access:
    """Return how the hub is reached, by options of a command or the environment.

    Raises:
        Refused: no hub is named.
    """
    address = hub or environ.get(ADDRESS_VARIABLE, "")
    if not address:
        raise Refused(HOW)
    return Access(address, token_file, ca, options=options)


def kept_access(kept: Mapping[str, Any]) -> Access:
    """Return how the hub is reached, as it was kept with a run."""
    address, token_file, ca, user, host = (
        str(kept.get(name, "")) for name in ("address", "token_file", "ca", "user", "host")
    )
    return Access(address, token_file, ca, user, host=host)


def is_outside(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether this process is in no session."""
    return not environ.get("CARME_SESSION")


def api_address(address: str) -> str:
    """Return the address of a hub's API.

    Raises:
        Refused: it is none, or others on the network could read the token.
    """
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Refused(f"{address!r} is not a hub's address. Write it as in a browser: https://hub.example.org")
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        raise Refused(f"Over {address} others on the network could read the token. Give the hub's https address.")
    base = address.rstrip("/")
    if base.endswith("/hub/api"):
        return base
    return base + ("/api" if base.endswith("/hub") else "/hub/api")
