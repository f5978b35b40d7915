"""What the job of a build does: its program and its data, as files of the job's document, and the command."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from carme_hub.domain.images.builds import Build
from carme_hub.node import program

#: The program, by its name in the session folder.
PROGRAM = "carme-build"


@dataclass(frozen=True, slots=True)
class BuildWork:
    """The work of one job.

    Attributes:
        size_bytes: the most that the image may have. environ: variables of the site for pip, such as ``PIP_INDEX_URL``;
            not secret. remove: ids of the user's builds whose files are removed.
        below: another image of the user, with whose packages it begins.
    """

    build: Build
    size_bytes: int
    environ: Mapping[str, str] = field(default_factory=dict)
    remove: Sequence[str] = ()
    below: Build | None = None

    def said(self) -> dict[str, object]:
        """Return what the program reads."""
        build = self.build
        said = {name: getattr(build, name) for name in ("id", "name", "base", "base_digest", "kind", "text")}
        said |= {"bytes": self.size_bytes, "environ": dict(self.environ), "remove": list(self.remove)}
        if self.below is not None:
            said |= {"below": self.below.id, "below_name": self.below.name}
        return said

    def programs(self) -> dict[str, str]:
        """Return its programs, by their names in the session folder."""
        return {PROGRAM: program("images/layer"), "carme_packages.py": program("packages")}

    def files(self) -> dict[str, dict[str, object]]:
        """Return the files of the session folder."""
        texts = {**self.programs(), "build.json": json.dumps(self.said())}
        return {name: {"mode": 0o600, "text": text} for name, text in texts.items()}

    @property
    def on_node(self) -> bool:
        """Whether it runs on the node itself, and not in the container of the base image."""
        return False

    def argv(self, session_folder: str) -> tuple[str, ...]:
        """Return the command in the container of the base image."""
        return ("python3", f"{session_folder}/{PROGRAM}", session_folder)

    def packages(self, home: str) -> str:
        """Return the folder into which it installs; it has another name once it is complete."""
        return f"{self.build.layer(home)}.part"
