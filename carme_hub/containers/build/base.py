"""The image of the store below one that a user has built: a folder, whose files are shared, or a squashfs file.

An image on top of a squashfs file is one, too, since the runtime of such a site takes nothing else, or starts from a
file more quickly: the file is unpacked, and packed again with the packages in it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from carme_hub.containers.images import layers_of
from carme_hub.containers.store.add import SQUASHED
from carme_hub.containers.store.folder import LISTING, OWN_FILES, remove_tree
from carme_hub.containers.store.listing import file_digest
from carme_hub.containers.store.process import Steps
from carme_hub.containers.store.recipe import about
from carme_hub.containers.store.unpack import pack
from carme_hub.errors import ContainerError


@dataclass(frozen=True, slots=True)
class Base:
    """An image of the store: its folder, its form, and what its ``image.json`` says."""

    folder: Path
    form: Literal["dir", "sqfs"]
    about: Mapping[str, Any]

    @classmethod
    def of(cls, folder: Path) -> Base:
        """Return the image of a folder of the store."""
        return cls(folder, "sqfs" if folder.name.endswith(".sqfs") else "dir", about(folder))

    @property
    def layers(self) -> tuple[str, ...]:
        """The folders inside of packages on top of it, the uppermost first."""
        return layers_of(self.about.get("layer"))

    def put(self, tree: Path, steps: Steps) -> None:
        """Make a tree of its files, without its description.

        Raises:
            ContainerError: its file is not what was added, or cannot be unpacked.
        """
        if self.form == "dir":
            # Its files are hardened, belong to root, and are not changed: a link to each is enough.
            argv = ["cp", "--archive", "--link", "--", str(self.folder), str(tree)]
            subprocess.run(argv, check=True, capture_output=True)
        else:
            file = self.folder / SQUASHED
            if file_digest(file) != self.about.get("squashfs"):
                raise ContainerError(f"{file}, below it, is not the file that was added: carme-hub image check")
            argv = ["unsquashfs", "-quiet", "-no-progress", "-no-xattrs", "-dest", str(tree), str(file)]
            steps.run(argv, confine=False, ourselves=True)
            steps.bounds.check_tree(tree)
        for name in OWN_FILES:
            remove_tree(tree / name)

    def pack(self, tree: Path, work: Path, steps: Steps) -> tuple[Path, dict[str, object]]:
        """Return the folder that becomes the image of a tree, and what its description says of that."""
        if self.form == "dir":
            return tree, {}
        made = work / "made"
        made.mkdir(mode=0o755)
        (tree / LISTING).rename(made / LISTING)
        pack(tree, made / SQUASHED, steps)
        return made, {"format": "sqfs", "file": SQUASHED, "squashfs": file_digest(made / SQUASHED)}
