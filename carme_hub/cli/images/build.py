"""``carme-hub image build``: build the default image."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from traitlets import Bool, Unicode
from traitlets.config import Application

from carme_hub.errors import CarmeError
from carme_hub.sandbox.images.build import (
    build_default_image,
    build_full_image,
    build_training_image,
    image_cache,
    mark_kept,
)


class _ImageTask(Application):
    """Base of the tasks: they print the image's path, and their progress as errors are, so that `$(…)` is the path."""

    def start(self) -> None:
        """Do the task."""
        try:
            print(self.make())
        except CarmeError as error:
            self.exit(f"{self.name}: {error}")

    def make(self) -> Path:
        """Return the image's folder."""
        raise NotImplementedError

    def progress(self, line: str) -> None:
        """Print a line of progress."""
        print(line, file=sys.stderr, flush=True)


class BuildApp(_ImageTask):
    """Build the default image."""

    name = "carme-hub image build"
    description = "Build an image (Python 3, JupyterLab, TensorBoard; or more) from PyPI, or print one built before."

    full = Bool(
        False,
        help="Include a whole system, for Charliecloud, Apptainer and Enroot. By default the node's /usr is used.",
    ).tag(config=True)
    store = Unicode("", help="Where images are kept. Empty: this machine's cache.").tag(config=True)
    training = Bool(False, help="Include torch, and Horovod built from its source release. Off by default.").tag(
        config=True
    )
    aliases: Any = {"store": "BuildApp.store"}
    flags: Any = {
        "full": ({"BuildApp": {"full": True}}, "include a whole system, for any runtime"),
        "training": ({"BuildApp": {"training": True}}, "include torch and Horovod"),
    }

    def make(self) -> Path:
        """Build it."""
        if self.full and self.training:
            self.exit("carme-hub image build: --full or --training, not both")
        build = build_full_image if self.full else build_training_image if self.training else build_default_image
        image = build(Path(self.store) if self.store else image_cache(), self.progress)
        mark_kept(image)
        return image
