"""``carme-hub image build``: build an image of one's own in a job, or the default image on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from traitlets import Bool, Integer, List, Unicode
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
    description = """Build an image of your own in a job: `carme-hub image build PATH`, with a Containerfile, a
    requirements.txt, an environment.yml or a folder with one, or in a session `carme-hub image build --installed`. [Its
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
    image_name = Unicode("", help="Of an image of your own: how it is called. The default is as its folder.").tag(
        config=True
    )
    text = Unicode("", help="Of an image of your own: one line for the form. Empty by default.").tag(config=True)
    minutes = Integer(30, min=1, help="Of an image of your own: how long the job may take.").tag(config=True)
    installed = Bool(False, help="Of an image of your own: what pip has installed in this session.").tag(config=True)
    detach = Bool(False, help="Of an image of your own: do not wait for the end.").tag(config=True)
    option = List(
        Unicode(), help="Outside of a session: NAME=VALUE of the form that starts servers, as image=lab; repeatable."
    ).tag(config=True)
    hub = Unicode("", help="Outside of a session: the hub's address.").tag(config=True)
    token_file = Unicode("", help="Outside of a session: a file with a token, which only you may read.").tag(
        config=True
    )
    ca = Unicode("", help="Outside of a session: a file with the authorities to trust.").tag(config=True)
    aliases: Any = {
        "store": "BuildApp.store",
        "name": "BuildApp.image_name",
        "description": "BuildApp.text",
        "token-file": "BuildApp.token_file",
        **{name: f"BuildApp.{name}" for name in ("minutes", "option", "hub", "ca")},
    }
    flags: Any = {
        "installed": ({"BuildApp": {"installed": True}}, "what pip has installed in this session"),
        "detach": ({"BuildApp": {"detach": True}}, "do not wait for the end"),
        "full": ({"BuildApp": {"full": True}}, "include a whole system, for any runtime"),
        "training": ({"BuildApp": {"training": True}}, "include torch and Horovod"),
    }

    def start(self) -> None:
        """Build it: an image of one's own by the command that sessions have."""
        if not (self.extra_args or self.installed):
            super().start()
            return
        if self.store or self.full or self.training:
            self.exit("carme-hub image build: --store, --full and --training are for the site's default image")
        said = {"name": self.image_name, "description": self.text, "hub": self.hub}
        said |= {"token-file": self.token_file, "ca": self.ca}
        words = [*self.extra_args, *(f"--{name}={value}" for name, value in said.items() if value)]
        words += [f"--minutes={self.minutes}", *(f"--option={each}" for each in self.option)]
        words += [f"--{name}" for name in ("installed", "detach") if getattr(self, name)]
        self.exit(command.main(["image", "build", *words]))

    def make(self) -> Path:
        """Build it."""
        if self.full and self.training:
            self.exit("carme-hub image build: --full or --training, not both")
        build = build_full_image if self.full else build_training_image if self.training else build_default_image
        image = build(Path(self.store) if self.store else image_cache(), self.progress)
        mark_kept(image)
        return image
