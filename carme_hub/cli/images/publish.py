"""``carme-hub image publish``: make images of the store of those that users offer to others."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

from traitlets import Float, Integer

from carme_hub.containers.build.publish import PublishOptions, publish
from carme_hub.containers.build.publish_system import publish_system
from carme_hub.containers.build.scan import NotAllowed
from carme_hub.containers.store.bounds import GIB, Bounds
from carme_hub.domain.images.builds import CONTAINERFILE, Build
from carme_hub.domain.images.offers import Offer, To
from carme_hub.errors import ContainerError
from carme_hub.images.publishing import due, published, refused
from carme_hub.images.settings import CarmeImages
from carme_hub.slurm.settings import CarmeSlurm
from carme_hub.store.engine import CarmeStore
from carme_hub.store.images.builds import BuildStore
from carme_hub.store.images.catalogue import ImageStore

from .store_command import StoreCommand


class PublishApp(StoreCommand):
    """Publish images of users."""

    name = "carme-hub image publish"
    description = """Make images of the store of those that their users offer to a group, or whose offer to everybody an
    administrator has allowed: each is taken as its user, unpacked by an account without rights, hardened, and scanned
    (CarmeImages.scan). A timer may call it, as root. Exit status: 0 all are published, or there are none; 1 at least
    one was refused or failed, and its user is told why."""
    examples = "sudo carme-hub image publish -f /etc/jupyterhub/jupyterhub_config.py"

    max_gib = Float(64.0, min=0.001, help="The most GiB of an image with its base.").tag(config=True)
    max_files = Integer(2_000_000, min=1, help="The most files, folders and links of an image.").tag(config=True)
    aliases: Any = {
        **StoreCommand.aliases,
        "max-gib": "PublishApp.max_gib",
        "max-files": "PublishApp.max_files",
    }

    def make(self) -> int:
        """Publish what is due."""
        config = self.configuration()
        settings, cluster = CarmeImages(config=config), CarmeSlurm(config=config).cluster
        store = CarmeStore(config=config)
        store.upgrade = False
        engine = store.open()
        failed = 0
        try:
            builds, images = BuildStore(engine, cluster), ImageStore(engine, cluster)
            for each in due(builds.builds(time.time())):
                build = builds.build(each.id, time.time())
                if build is not None and due(
                    [build]
                ):  # else another run has published it meanwhile, or it is withdrawn
                    failed += not self._publish(build, builds, images, settings)
        finally:
            engine.dispose()
        return int(bool(failed))

    def _publish(self, build: Build, builds: BuildStore, images: ImageStore, settings: CarmeImages) -> bool:
        bounds = Bounds(int(self.max_gib * GIB), self.max_files)
        known = images.image(build.name)
        if known is not None and not known.source.startswith(f"layer:{build.id} "):
            # What was offered of that one would be offered of this one, without anybody's leave.
            problem = "another image has, or had, its name; build it again under another one"
            builds.change(build.id, wanted=refused(build, problem))
            self.note(f"{build.name} of {build.user} is not published: {problem}")
            return False
        try:
            act = publish_system if build.kind == CONTAINERFILE else publish
            path = act(build, Path(self.store), PublishOptions(bounds, tuple(settings.scan), self.note))
        except NotAllowed as error:
            builds.change(build.id, wanted=refused(build, str(error)))
            self.note(f"{build.name} of {build.user} is not published: {error}")
            return False
        except (ContainerError, OSError, subprocess.SubprocessError) as error:  # others are published all the same
            builds.change(build.id, wanted=refused(build, f"it could not be published: {error}"))
            self.note(f"{build.name} of {build.user} is not published: {error}")
            return False
        now = time.time()
        images.offer(build.name, Offer(To.USER, build.user, build.user, now))
        said = builds.build(build.id, now)  # minutes have passed: it may be withdrawn, or refused
        if said is not None and said.wanted is not None and said.wanted.is_due:
            images.offer(build.name, said.wanted.offer)
        builds.change(build.id, **published(build))
        print(path)
        return True
