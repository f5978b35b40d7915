"""``carme-hub image build``: build an image of one's own in a job, or the default image on this machine."""

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
from carme_hub.training import command

#: Options by which it is an image of one's own.
OWN_OPTIONS = frozenset(
    {"--installed", "--name", "--description", "--minutes", "--detach", "--option", "--hub", "--token-file", "--ca"}
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
    """Build an image."""

    name = "carme-hub image build"
    description = """Build an image of your own in a job: `carme-hub image build PATH`, with a requirements.txt, an
    environment.yml or a folder with one, or in a session `carme-hub image build --installed`. [Its
    options](../howto/build-an-image.md). Without either, as an administrator: build the site's default image (Python 3,
    JupyterLab, TensorBoard; or more) from PyPI on this machine, or print one built before."""
    examples = "carme-hub image build requirements.txt --name=climate"

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

    #: Of an image of one's own; its options are parsed by the command that sessions have.
    own: tuple[str, ...] = ()

    def initialize(self, argv: list[str] | None = None) -> None:
        """Read the command line; keep that of an image of one's own as it is."""
        words = list(sys.argv[1:] if argv is None else argv)
        given = {word.partition("=")[0] for word in words}
        if words and (not words[0].startswith("-") or given & OWN_OPTIONS):
            self.own = tuple(words)
        else:
            super().initialize(argv)

    def start(self) -> None:
        """Build it."""
        if self.own:
            self.exit(command.main(["image", "build", *self.own]))
        super().start()

    def make(self) -> Path:
        """Build it."""
        if self.full and self.training:
            self.exit("carme-hub image build: --full or --training, not both")
        build = build_full_image if self.full else build_training_image if self.training else build_default_image
        image = build(Path(self.store) if self.store else image_cache(), self.progress)
        mark_kept(image)
        return image
