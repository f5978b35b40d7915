"""The settings of images, read by the hub, which offers them, and by the service, which keeps the catalogue."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from traitlets import Bool, Dict, Float, Integer, List, TraitError, Unicode, validate
from traitlets.config import LoggingConfigurable

#: The service's name and its address below ``/services/``.
SERVICE = "images"
#: What a job says to the Prolog of its nodes: the beginning of a word of its comment (sbatch's ``--comment``).
COMMENT = "carme-image="


class CarmeImages(LoggingConfigurable):
    """The catalogue of container images: what is offered to whom, what is inside, and which node has what."""

    enabled = Bool(
        False,
        help="""Keep a catalogue of images and offer those of the stores. The default is off.
        ``configure(c, images=True)`` sets it, and adds the images service.""",
    ).tag(config=True)

    port = Integer(
        10105, min=1, max=65535, help="Port of the images service on the hub's machine. Example: ``10205``."
    ).tag(config=True)

    stores = List(
        Unicode(),
        help="""Folders with images, as ``carme-hub image add --store`` fills them; they are on the same path on the
        hub's machine and on compute nodes. The images that ``SlurmContainerSpawner.images`` lists are in the catalogue
        anyway. Only root may write there. The default is empty. Example: ``["/srv/images"]``.""",
    ).tag(config=True)

    node_store = Unicode(
        "",
        help="""Folder on the disk of compute nodes to which ``carme-node-images`` fetches images by their digests.
        Sessions then use that copy. The default, empty, has them use the store itself. Example:
        ``"/var/lib/carme-images"``.""",
    ).tag(config=True)

    drivers = Dict(
        key_trait=Unicode(),
        value_trait=Unicode(),
        help="""Version of NVIDIA's driver by GPU type, as Slurm names it, to say which images fit. The default, empty,
        takes what the nodes report (``carme-node-images``). Example: ``{"a100": "550.54.15", "h100": "580.65.06"}``.
        """,
    ).tag(config=True)

    interval = Float(
        60.0, min=1.0, help="Seconds between two looks at the stores. The default is 60. Example: ``300``."
    ).tag(config=True)

    prefetch_hours = Float(
        24.0,
        min=0.0,
        max=240.0,
        help="""Hours before a booking from which on its nodes fetch its image. The default is 24; 0: never. Example:
        ``12``.""",
    ).tag(config=True)

    report_minutes = Float(
        60.0,
        min=1.0,
        help="""Minutes after which what a node has said of its images counts as unknown. The default is 60. Example:
        ``15``.""",
    ).tag(config=True)

    @validate("stores")
    def _check_stores(self, proposal: dict[str, Any]) -> list[str]:
        return [_absolute("stores", each) for each in proposal["value"]]

    @validate("node_store")
    def _check_node_store(self, proposal: dict[str, Any]) -> str:
        return _absolute("node_store", proposal["value"]) if proposal["value"] else ""


def _absolute(name: str, path: str) -> str:
    plain = str(PurePosixPath(path))
    if not path.startswith("/") or ".." in PurePosixPath(path).parts or any(each in path for each in " :,\\'\"\n"):
        raise TraitError(f"CarmeImages.{name} is {path!r}; give an absolute path without .., spaces, colons or quotes")
    return plain
