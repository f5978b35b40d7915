"""The settings of images, read by the hub, which offers them, and by the service, which keeps the catalogue."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from traitlets import Bool, Dict, Enum, Float, Integer, List, TraitError, Unicode, validate
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

    build_limits = Dict(
        key_trait=Unicode(),
        value_trait=Dict(key_trait=Enum(("builds", "gib", "minutes", "days"))),
        help="""What users may build (``carme-hub image build``), by group of JupyterHub, and with the name "" for
        everybody: ``builds``, images that a user may have; ``gib``, size of one; ``minutes``, time of its job;
        ``days`` without use after which it is removed, of which its user is told two weeks before. For a user in
        several groups the largest of each kind holds. What is not named is 5, 10, 120 and 90; ``builds`` 0: none.
        The default is empty. Example: ``{"": {"builds": 2}, "lab-ml": {"builds": 20, "gib": 40}}``.""",
    ).tag(config=True)

    build_environ = Dict(
        key_trait=Unicode(),
        value_trait=Unicode(),
        help="""Variables for pip, and for the steps of a Containerfile, in the jobs that build images of users, such as
        a mirror of PyPI or a proxy where compute nodes have no network. Not for passwords: users put those into their
        own ``pip.conf``. The default is empty. Example: ``{"PIP_INDEX_URL": "https://pypi.example.org/simple"}``.""",
    ).tag(config=True)

    build_registries = List(
        Unicode(),
        help="""Repositories of registries, with their host and ``*``, on which a Containerfile of a user may be built,
        beside the images of this site that the user is offered. The default, empty, allows none. What is written here
        runs in sessions unseen until somebody is offered it. Example:
        ``["docker.io/library/*", "nvcr.io/nvidia/pytorch"]``.""",
    ).tag(config=True)

    build_network = Bool(
        True,
        help="""Whether the steps of a Containerfile have the network of their compute node. The default is on; off:
        they have none, and use the files of their folder and what the base has. Example: ``False``.""",
    ).tag(config=True)

    build_channels = Dict(
        key_trait=Unicode(),
        value_trait=Unicode(),
        default_value={"conda-forge": "https://conda.anaconda.org/conda-forge"},
        help="""Channels of conda from which an ``environment.yml`` of a user may take packages, each with the address
        from which compute nodes fetch: a mirror, or a folder that containers see (``file://``). Others are refused. A
        file without channels takes all of these, in this order. The default is conda-forge alone; empty: no packages
        of conda. Example: ``{"conda-forge": "https://conda.example.org/conda-forge", "ours": "file:///srv/conda"}``.""",
    ).tag(config=True)

    scan = List(
        Unicode(),
        help="""Command that ``carme-hub image publish`` runs, as root, on an image of a user before others are offered
        it: with the folder of the unpacked and hardened image as the last argument, and its parts as CycloneDX on
        standard input. Status 0: it may be offered; 1: it may not, and what the command printed says why; others: it
        is tried again later. The default, empty, has no scan. Example: ``["/usr/local/sbin/scan-image"]``.""",
    ).tag(config=True)

    @validate("build_limits")
    def _check_build_limits(self, proposal: dict[str, Any]) -> dict[str, dict[str, float]]:
        for group, limits in proposal["value"].items():
            if any(not isinstance(each, int | float) or isinstance(each, bool) or each < 0 for each in limits.values()):
                raise TraitError(f"CarmeImages.build_limits of {group or 'everybody'} are numbers from 0 up")
        return dict(proposal["value"])

    @validate("build_registries")
    def _check_build_registries(self, proposal: dict[str, Any]) -> list[str]:
        for each in proposal["value"]:
            host, _, path = each.partition("/")
            if not path or not host.strip("*.") or "://" in each or any(letter in each for letter in " @?[]"):
                raise TraitError(
                    f"CarmeImages.build_registries has {each!r}: write HOST/REPOSITORY, as docker.io/library/*"
                )
        return list(proposal["value"])

    @validate("build_channels")
    def _check_build_channels(self, proposal: dict[str, Any]) -> dict[str, str]:
        for name, url in proposal["value"].items():
            if not name or "@" in url or not url.startswith(("https://", "http://", "file:///")):
                raise TraitError(f"CarmeImages.build_channels[{name!r}] is {url!r}: write a URL without a password")
        return dict(proposal["value"])

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
