"""Whether images fit the site's profiles, and in which profile *Try it* starts them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from carme_hub.domain.cluster.resources import Node
from carme_hub.domain.images.contents import numbers
from carme_hub.domain.images.gpu_fit import Fit, fit_of
from carme_hub.domain.images.offers import CatalogueImage
from carme_hub.domain.sessions.profile import Profile


@dataclass(frozen=True, slots=True)
class ProfileFit:
    """A profile that offers an image, and whether the image fits its GPUs."""

    profile: Profile
    fit: Fit


def drivers_by_type(nodes: Iterable[Node], of_nodes: Mapping[str, str], named: Mapping[str, str]) -> dict[str, str]:
    """Return the oldest driver by GPU type.

    Args:
        of_nodes: drivers as the nodes say. named: by the administrator, which count first.
    """
    found: dict[str, str] = {}
    for node in nodes:
        if driver := of_nodes.get(node.name, ""):
            for type in node.gpus:
                if type not in found or numbers(driver) < numbers(found[type]):
                    found[type] = driver
    return {**found, **named}


def profiles_for(image: CatalogueImage, profiles: Sequence[Profile], drivers: Mapping[str, str]) -> list[ProfileFit]:
    """Return the profiles with which an image can be chosen, each with whether it fits."""
    found = []
    for profile in profiles:
        fixed = profile.override.get("image")
        if (profile.images and image.name not in profile.images) or (fixed and fixed != image.name):
            continue
        types = tuple(profile.gpus.types) if profile.gpus is not None else ()
        found.append(ProfileFit(profile, fit_of(image.contents.cuda, types, drivers)))
    return found


def try_in(fits: Sequence[ProfileFit]) -> str:
    """Return the slug of the profile in which *Try it* starts an image, "" = the form's own choice.

    The default profile where the image fits, then the first with GPUs that it fits, then the first that it may fit.
    """
    ranked = [each for each in fits if each.fit.fits is not False]
    for wanted in (
        [each for each in ranked if each.profile.default and each.fit.fits],
        [each for each in ranked if each.profile.gpus is not None and each.fit.fits],
        ranked,
    ):
        if wanted:
            return wanted[0].profile.slug
    return ""
