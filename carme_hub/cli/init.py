"""``carme-hub init``: create the state folder with the hub's secrets and certificates, before the first start."""

from __future__ import annotations

import asyncio
import os
import secrets
from pathlib import Path
from typing import Any

from traitlets import Unicode
from traitlets.config import Application

from carme_hub.config import PROXY_TOKEN
from carme_hub.errors import CarmeError

from .hub_config import hub_of, load_config


class InitApp(Application):
    """Create what the hub and its proxy need before their first start."""

    name = "carme-hub init"
    description = """Create the state folder (0700), the cookie secret, the proxy's token (0600) and the internal
    certificates that a configuration names. Existing files stay. Run it as the hub's user."""

    config_path = Unicode(
        "jupyterhub_config.py", help="The hub's configuration file. The default is the one in the working folder."
    ).tag(config=True)
    aliases = {"config": "InitApp.config_path", "f": "InitApp.config_path"}

    def start(self) -> None:
        """Create what is missing, and print it."""
        try:
            self._make(hub_of(load_config(Path(self.config_path))))
        except CarmeError as error:
            self.exit(f"carme-hub init: {error}")

    def _make(self, hub: Any) -> None:
        cookie_secret = Path(hub.cookie_secret_file).absolute()
        folder = cookie_secret.parent
        if not folder.is_dir():
            folder.mkdir(mode=0o700, parents=True)
            print(f"made {folder}")
        for path in (cookie_secret, folder / PROXY_TOKEN):
            if not path.exists():
                _write_private(path, secrets.token_hex(32) + "\n")
                print(f"made {path}")
        if hub.internal_ssl:
            asyncio.run(make_certificates(hub))
            print(f"certificates are in {Path(hub.internal_certs_location).absolute()}")


async def make_certificates(hub: Any) -> None:
    """Create or load the internal certificates; JupyterHub's code for it needs a running event loop."""
    hub.init_internal_ssl()


def _write_private(path: Path, text: str) -> None:
    """Write a new file that was never readable by others."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text)
