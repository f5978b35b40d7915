"""Base class of the commands that use a hub's REST API as one of its users: the hub's address, and the token.

A token comes from the environment or a private file, never from the command line, which everybody on the machine can
read.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from traitlets import Unicode

from .base import ConfiguredApp, UsageError

TOKEN_VARIABLE, ADDRESS_VARIABLE = "JUPYTERHUB_API_TOKEN", "JUPYTERHUB_API_URL"


class HubTask(ConfiguredApp):
    """A command that uses a hub's REST API; it does not read the hub's configuration."""

    hub = Unicode(
        "",
        help="""The hub's address as in a browser: ``https://hub.example.org``. The default is the environment's
        JUPYTERHUB_API_URL.""",
    ).tag(config=True)
    token_file = Unicode(
        "",
        help="""File (mode 0600) with a token from the hub's page ``/hub/token``. The default is the environment's
        JUPYTERHUB_API_TOKEN; a token is never an argument, since everybody on the machine can see those.""",
    ).tag(config=True)
    ca = Unicode(
        "",
        help="File with the certificates to trust, for a site's own authority. The default is what the system trusts.",
    ).tag(config=True)

    aliases: Any = {"hub": "HubTask.hub", "token-file": "HubTask.token_file", "ca": "HubTask.ca"}

    def address(self) -> str:
        """Return the hub's address."""
        address = self.hub or os.environ.get(ADDRESS_VARIABLE, "")
        if not address:
            raise UsageError(f"name the hub with --hub https://… or {ADDRESS_VARIABLE}")
        return address

    def token(self) -> str:
        """Return the token."""
        if not self.token_file:
            token = os.environ.get(TOKEN_VARIABLE, "").strip()
            if not token:
                raise UsageError(
                    f"give one of your tokens by --token-file or {TOKEN_VARIABLE}; the hub's page /hub/token makes one"
                )
            return token
        from carme_hub.auth.secret_files import read_secret  # here: it brings JupyterHub, and --help need not wait

        return read_secret(Path(self.token_file).expanduser(), "--token-file")
