"""The container runtimes in which stories are told, each with an image that it supports."""

from __future__ import annotations

from carme_hub.containers.apptainer import Apptainer
from carme_hub.containers.bubblewrap import Bubblewrap
from carme_hub.containers.charliecloud import Charliecloud
from carme_hub.containers.images import read_image
from carme_hub.containers.podman import Podman
from carme_hub.containers.runtime import Image, Runtime
from carme_hub.sandbox.images.apptainer import ensure_apptainer
from carme_hub.sandbox.images.build import build_default_image, build_full_image

KINDS = ("bubblewrap", "bubblewrap-full", "charliecloud", "apptainer", "podman")


def kind_of(name: str) -> tuple[Runtime, Image]:
    """Return a runtime and an image that it supports."""
    if name == "bubblewrap":
        return Bubblewrap(), read_image(build_default_image())
    full = read_image(build_full_image())
    if name == "bubblewrap-full":
        return Bubblewrap(), full
    if name == "podman":
        # crun refuses a hybrid of cgroup v1 and v2, and virtual GPUs have no CDI file.
        return Podman(engine="runc", device=""), full
    return (Charliecloud(), full) if name == "charliecloud" else (Apptainer(str(ensure_apptainer())), full)
