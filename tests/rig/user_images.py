"""A store with one base image, and an image that a user without rights has built on top of it."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from carme_hub.containers.build.publish import (
    Publishing,
    PublishOptions,
    publish,
)
from carme_hub.containers.store import add_image
from carme_hub.domain.images.builds import Build

ID = "11111111-1111-4111-8111-111111111111"
SITE = "lib/python3.11/site-packages"


class Place:
    """A store with one base image, and the home of a user without rights with one build."""

    #: How an image of this kind is made.
    way: type[Publishing] | None = None

    def __init__(self, folder: Path) -> None:
        self.store, self.home = folder / "store", folder / "home"
        self.store.mkdir(mode=0o755)
        system = folder / "system"
        (system / "usr/bin").mkdir(parents=True)
        (system / "usr/bin/tool").write_text("tool")
        (system / "opt").mkdir()
        add_image(system, self.store, "base")
        self.digest = json.loads((self.store / "base/image.json").read_text())["digest"]
        self.layer = self.home / ".carme/images" / ID
        (self.layer / SITE / "rich-14.0.dist-info").mkdir(parents=True)
        (self.layer / SITE / "rich.py").write_text("VERSION = '14.0'\n")
        (self.layer / SITE / "rich/dev").mkdir(parents=True)
        (self.layer / SITE / "rich/dev/tools.py").write_text("")
        (self.layer / SITE / "rich-14.0.dist-info/METADATA").write_text("Name: rich\nVersion: 14.0\nLicense: MIT\n\n")
        (self.layer / "bin").mkdir()
        (self.layer / "image.json").write_text('{"name": "usurped", "layer": "/etc"}')
        self.layer.chmod(0o700)
        self.build = Build(ID, "nobody", "tools", "base", self.digest, text="rich==14.0\n", description="Colours")

    def give(self) -> None:
        """Give the home to its user."""
        if os.geteuid() == 0:
            entry = pwd.getpwnam("nobody")
            for path in (self.home, *self.home.rglob("*")):
                os.chown(path, entry.pw_uid, entry.pw_gid, follow_symlinks=False)

    def publish(self, **options: Any) -> Path:
        """Publish the build."""
        self.give()
        said: list[str] = []
        path = publish(self.build, self.store, PublishOptions(progress=said.append, **options), way=self.way)
        self.said = said
        return path

    def is_clean(self) -> bool:
        """Return whether the store has nothing but the base."""
        names = [path.name for path in self.store.iterdir() if not path.name.startswith(".")]
        return (
            names == ["base"]
            and not list(self.store.glob(".adding*"))
            and len(list(self.store.glob(".digests/*"))) == 1
        )


def of_user(home: Path) -> Callable[[str], Any]:
    """Return who a user is, whose home is that of the test."""
    real = pwd.getpwnam("nobody")

    def of_test(user: str) -> Any:
        uid = real.pw_uid if os.geteuid() == 0 else os.getuid()
        return SimpleNamespace(pw_name=user, pw_uid=uid, pw_gid=real.pw_gid, pw_dir=str(home))

    return of_test
