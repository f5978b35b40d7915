"""Read and write ``image.json``, the description in an image folder, written when the image is built or added."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from carme_hub.errors import ContainerError

from .check import check_image, check_path
from .runtime import Image

FORMATS = ("dir", "sqfs", "sif", "ref")
BASES = ("own", "host")
#: Backends of trainings, and what the description of an image that was built here has where the image has one.
BACKENDS = {"torchrun": "torch", "horovod": "horovod", "mpi": "mpi"}


def write_image(folder: Path, *, name: str, description: str, base: str, more: Mapping[str, object]) -> None:
    """Write the description of a directory image, with further values of its builder."""
    said = {"name": name, "description": description, "format": "dir", "base": base, **more}
    text = json.dumps(said, indent=2, default=list)
    (folder / "image.json").write_text(text + "\n", encoding="utf-8")


def read_image(folder: Path) -> Image:
    """Return the image of a folder; raise ``ContainerError`` if it has no valid description."""
    try:
        data = json.loads((folder / "image.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ContainerError(f"{folder} contains no image: its image.json cannot be read ({error})") from error
    if not isinstance(data, dict) or data.get("format") not in FORMATS or data.get("base", "own") not in BASES:
        raise ContainerError(f"{folder}/image.json is not a description of an image")
    environ = data.get("environ") or {}
    image = Image(
        name=folder.name if folder.is_symlink() else str(data.get("name") or folder.name),
        path=str(folder / str(data["file"])) if data["format"] == "sqfs" and "file" in data else str(folder),
        format=data["format"],
        description=str(data.get("description", "")),
        base=data.get("base", "own"),
        provides=tuple(name for name, key in BACKENDS.items() if data.get(key)),
        digest=str(data.get("digest") or ""),
        environ=tuple((str(each), str(value)) for each, value in environ.items()) if isinstance(environ, dict) else (),
        layers=layers_of(data.get("layer")),
    )
    check_image(image)
    for layer in image.layers:
        check_path(layer, "the layer of an image")
    return image


def layers_of(said: object) -> tuple[str, ...]:
    """Return the layers that a description names: none, one path, or a list of them, the uppermost first."""
    found = said if isinstance(said, (list, tuple)) else [said]
    return tuple(str(each) for each in found if each)


def as_setting(image: Image) -> dict[str, object]:
    """Return an image as an entry of ``SlurmContainerSpawner.images``."""
    return {"layer" if name == "layers" else name: value for name, value in asdict(image).items()}


def pinned(image: Image, digest: str = "") -> Image:
    """Return an image as what its name stands for now: with its digest, and the path that stays when the name moves.

    Blocks on the file system. An image without a digest, and one that this host does not see, stays as it is.

    Args:
        digest: of the image that it must be, for what belongs to an earlier session; "" = as the settings say.

    Raises:
        ContainerError: the store has no image of this digest any more.
    """
    digest = digest or image.digest
    folder = Path(image.path) if image.format == "dir" else Path(image.path).parent
    if image.format not in ("dir", "sqfs") or not (folder / "image.json").is_file():
        return replace(image, digest=digest)
    real = folder.resolve()
    if real.parent.name != ".digests" and not digest:
        return image  # made by hand or by `carme-hub image build`: the settings say all
    if digest and real.parent.name == ".digests":
        real = real.with_name(digest.replace(":", "-") + real.name[len("sha256-") + 64 :])
        if not (real / "image.json").is_file():
            raise ContainerError(f"The image {image.name} is not in the store as {digest} any more.")
    found = read_image(real)
    if digest and found.digest and found.digest != digest:
        raise ContainerError(f"The image {image.name} is {found.digest}, and must be {digest}.")
    if not found.digest:
        return replace(image, digest=digest)
    path = str(real) if image.format == "dir" else str(real / Path(image.path).name)
    environ = image.environ or found.environ
    return replace(image, path=path, digest=found.digest, environ=environ, layers=image.layers or found.layers)
