"""What the form says of an image: whether a session with it starts at once, or the image has to be fetched first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from carme_hub.domain.images.start_times import Fetching, duration
from carme_hub.domain.sessions.availability import Cluster
from carme_hub.domain.sessions.profile import Profile
from carme_hub.domain.sessions.session import Request


@dataclass(frozen=True, slots=True)
class OfferedStarts:
    """How sessions start, by image.

    Attributes:
        fetching: takes an image and the nodes on which a session could start; None = nothing is ever fetched.
        seconds: of a usual start here, as it was measured.
    """

    fetching: Callable[[str, Collection[str]], Fetching | None]
    seconds: Mapping[str, float] = field(default_factory=dict)

    def sentence(self, cluster: Cluster, request: Request) -> str:
        """Return what the form says of a request's image, "" = nothing."""
        found = self.fetching(request.image, possible_nodes(cluster, request))
        usual = self.seconds.get(request.image, 0.0)
        takes = f"a start takes about {duration(usual)} here" if usual else ""
        if found is None:
            return f"Image {request.image}: {takes}" if takes else ""
        said = f"Image {request.image}: {found.sentence()}"
        return f"{said} ({takes})" if takes and found.there else said

    def suffix(self, cluster: Cluster, profile: Profile, image: str) -> str:
        """Return what a list of images says behind a name, "" = nothing."""
        types = profile.gpus.types if profile.gpus is not None else ()
        nodes = [
            node.name
            for node in cluster.partition_nodes(profile.partition).nodes
            if not types or any(node.gpus.get(type) for type in types)
        ]
        found = self.fetching(image, nodes)
        return f" · {found.suffix()}" if found is not None and found.suffix() else ""


def possible_nodes(cluster: Cluster, request: Request) -> list[str]:
    """Return the nodes on which a request could start, free or not."""
    nodes = cluster.only(request.node).partition_nodes(request.partition).nodes
    return [node.name for node in nodes if not request.gpus or node.gpus.get(request.gpus.type)]


def image_lines(
    images: Mapping[str, str], starts: OfferedStarts | None, cluster: Cluster, profile: Profile
) -> list[tuple[str, str]]:
    """Return the list of a profile's images, each with its line.

    Args:
        images: descriptions of those that are offered, by name.
    """
    found = []
    for name in (each for each in profile.images or images if each in images):
        line = f"{name} – {images[name]}" if images[name] else name
        found.append((name, line + (starts.suffix(cluster, profile, name) if starts is not None else "")))
    return found
