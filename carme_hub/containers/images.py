"""Read and write ``image.json``, the description in an image folder, written when the image is built or added."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from carme_hub.errors import ContainerError

from .check import check_image
from .runtime import Image

FORMATS = ("dir", "sqfs", "sif", "ref")
BASES = ("own", "host")
#: Backends of trainings, and what the description of an image that was built here has where the image has one.
BACKENDS = {"torchrun": "torch", "horovod": "horovod", "mpi": "mpi"}


def write_image(folder: Path, *, name: str, description: str, base: str, more: Mapping[str, object]) -> None:
    """Write the description of a directory image, with further values of its builder."""
    text = json.dumps({"name": name, "description": description, "format": "dir", "base": base, **more}, indent=2)
    (folder / "image.json").write_text(text + "\n", encoding="utf-8")


def read_image(folder: Path) -> Image:
    """Return the image of a folder; raise ``ContainerError`` if it has no valid description."""
    try:
        data = json.loads((folder / "image.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ContainerError(f"{folder} contains no image: its image.json cannot be read ({error})") from error
    if not isinstance(data, dict) or data.get("format") not in FORMATS or data.get("base", "own") not in BASES:
        raise ContainerError(f"{folder}/image.json is not a description of an image")
    image = Image(
        name=str(data.get("name") or folder.name),
        path=str(folder),
        format=data["format"],
        description=str(data.get("description", "")),
        base=data.get("base", "own"),
        provides=tuple(name for name, key in BACKENDS.items() if data.get(key)),
    )
    check_image(image)
    return image
