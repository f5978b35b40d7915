"""What the commands on an image store share: which store it is."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from traitlets import Unicode

from carme_hub.cli.base import ConfiguredApp
from carme_hub.containers.store.folder import StoreFolder
from carme_hub.errors import ContainerError, Refused

STORE = "/var/lib/carme-hub-images"


class StoreCommand(ConfiguredApp):
    """A command on an image store."""

    store = Unicode(STORE, help="The folder of the site's images. The default is the one of this machine.").tag(
        config=True
    )
    aliases: Any = {**ConfiguredApp.aliases, "store": "StoreCommand.store"}

    @property
    def folder(self) -> StoreFolder:
        """The store."""
        return StoreFolder(Path(self.store))

    async def work(self) -> int:
        """Do the work; a refusal of the store is the answer, not a wrong command line."""
        # Not in a thread, which Ctrl-C would not end: the work has nothing to wait for.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return self.make()
        except ContainerError as error:
            raise Refused(str(error), reason="image") from error

    def make(self) -> int:
        """Do the work and return the exit status."""
        raise NotImplementedError
