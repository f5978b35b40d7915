"""``carme-hub image publish``: make images of the store of those that users offer to others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from traitlets import Float, Integer

from carme_hub.containers.build.publish import PublishOptions
from carme_hub.containers.store.bounds import GIB, Bounds
from carme_hub.containers.store.folder import StoreBusy
from carme_hub.domain.images.builds import limits_for
from carme_hub.images.publishing import Publisher
from carme_hub.images.settings import CarmeImages
from carme_hub.slurm.settings import CarmeSlurm
from carme_hub.store.engine import CarmeStore
from carme_hub.store.images.builds import BuildStore
from carme_hub.store.images.catalogue import ImageStore

from .store_command import StoreCommand


class PublishApp(StoreCommand):
    """Publish images of users."""

    name = "carme-hub image publish"
    description = """Make images of the store of those that their users offer to a group: each is taken as its user,
    unpacked by an account without rights, hardened, and scanned (CarmeImages.scan). What an administrator has to allow
    is made without a name, and gets one in the next run after they have allowed its digest. A timer may call it, as
    root; one run works at a time, and what an earlier one has left is done first. Exit status: 0 all that is due is
    done, there is nothing, or another run is at work; 1 at least one was refused, or could not be published now and is
    tried again later, and its user is told why."""
    examples = "sudo carme-hub image publish -f /etc/jupyterhub/jupyterhub_config.py"

    max_gib = Float(64.0, min=0.001, help="The most GiB of an image with its base.").tag(config=True)
    max_files = Integer(2_000_000, min=1, help="The most files, folders and links of an image.").tag(config=True)
    max_minutes = Float(120.0, min=0.01, help="The most minutes for one image.").tag(config=True)
    aliases: Any = {
        **StoreCommand.aliases,
        "max-gib": "PublishApp.max_gib",
        "max-files": "PublishApp.max_files",
        "max-minutes": "PublishApp.max_minutes",
    }

    def make(self) -> int:
        """Publish what is due."""
        config = self.configuration()
        settings, cluster = CarmeImages(config=config), CarmeSlurm(config=config).cluster
        store = CarmeStore(config=config)
        store.upgrade = False
        engine = store.open()

        # Their user's own limit is not known here: the largest of all.
        limits = limits_for(settings.build_limits, settings.build_limits)
        layer_bytes = int(max(limits.gib, limits_for((), settings.build_limits).gib) * GIB)

        def options() -> PublishOptions:
            bounds = Bounds(int(self.max_gib * GIB), self.max_files, self.max_minutes * 60)
            return PublishOptions(bounds, layer_bytes, tuple(settings.scan), self.note)

        try:
            builds, images = BuildStore(engine, cluster), ImageStore(engine, cluster)
            done = Publisher(builds, images, Path(self.store), options, self.note).run()
        except StoreBusy:
            self.note(f"another carme-hub image publish is at work in {self.store}, and does what is due")
            return 0
        finally:
            engine.dispose()
        for path in done.paths:
            print(path)
        return int(bool(done.failed))
