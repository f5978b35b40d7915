"""On which nodes sessions of a profile can start, so that a booking for the profile gets usable GPUs. Pure.

The settings that the profile's choices fix are decisive: the first combination of choices that gives the needed GPUs
counts, beginning with the defaults. Whether the profile is offered to a person is not checked here.
``carme_hub.booking.calendar`` calls this.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, product

from carme_hub.domain.sessions.profile import Choice, GpuLimit, Limit, Profile, ProfileOption

from .capacity import GpuInventory, Need

#: Settings that decide where a session can start.
_PLACEMENT_KEYS = frozenset({"gpu_type", "gpus", "partition", "cpus"})
#: How many combinations of choices are tried at most.
_MAX_COMBINATIONS = 1000
#: The largest number of GPUs of a seat that a refusal names.
_MAX_SEAT_GPUS = 64


@dataclass(frozen=True, slots=True)
class SubmitOptions:
    """How a session of a profile is submitted: partitions ("" = none named), and the least number of CPUs."""

    partition: str
    cpus: int

    def fits_on(self, item: GpuInventory, gpus: int, partitions: Collection[str]) -> bool:
        """Return whether the session can run on a node of these partitions with ``gpus`` GPUs (0 = all) of it."""
        inside = not set(self.partition.split(",")).isdisjoint(partitions)
        # On a node that is booked as a whole, the CPUs of a seat are known only when it is placed.
        return inside and (item.exclusive or self.cpus <= item.cpus * (gpus or item.count))


def submit_options(profile: Profile, need: Need) -> SubmitOptions | None:
    """Return how a session that gets a seat is submitted, None if the profile never gives such GPUs."""
    for fixed in _combinations(profile):
        if _gives(profile, fixed, need):
            cpus = fixed.get("cpus", _lowest(profile.cpus))
            return SubmitOptions(str(fixed.get("partition", profile.partition)), cpus if isinstance(cpus, int) else 1)
    return None


def places_for(
    profile: Profile, need: Need, inventory: Iterable[GpuInventory], partitions: Mapping[str, Collection[str]]
) -> frozenset[tuple[str, str]]:
    """Return the (node, GPU type) pairs on which sessions of the profile can have such seats, of any type.

    Args:
        partitions: by node; "" is among them if jobs that name no partition start on the node.
    """
    known = [*inventory]
    starts = {type: submit_options(profile, Need(type, need.gpus)) for type in {item.type for item in known}}
    return frozenset(
        (item.node, item.type)
        for item in known
        if (start := starts[item.type]) is not None and start.fits_on(item, need.gpus, partitions.get(item.node, ()))
    )


def mismatch(profile: Profile, need: Need, account: str) -> str:
    """Return why no session of a profile can have such a seat on any node, as a sentence; "" if one can."""
    name, limit = f"“{profile.display_name}”", profile.gpus
    if limit is None:
        return f"{name} gives no GPU. Choose another profile, or none."
    if profile.reservation:
        return f"Sessions of {name} start in the reservation {profile.reservation} alone. Choose another profile."
    if profile.accounts and account and account not in profile.accounts:
        listed = ", ".join(profile.accounts)
        return f"{name} is for the account{'' if len(profile.accounts) == 1 else 's'} {listed}, not for {account}."
    if submit_options(profile, need) is not None:
        return ""
    if not (most := _counts(profile, limit, need.type)):
        return f"{name} gives no {need.type}, but {', '.join(limit.types)}. Choose one of these, or another profile."
    gives = most[0] if len(most) == 1 else f"{', '.join(most[:-1])} or {most[-1]}"
    return f"A session of {name} has {gives} × {need.type}, and a seat would have {need.gpus}. Choose seats of as many."


def _counts(profile: Profile, limit: GpuLimit, type: str) -> list[str]:
    most = min(limit.most(type), _MAX_SEAT_GPUS)
    return [str(count) for count in range(1, most + 1) if submit_options(profile, Need(type, count)) is not None]


def _combinations(profile: Profile) -> Iterator[Mapping[str, object]]:
    """Yield the settings fixed by each combination of relevant choices, the defaults first."""
    options = [
        each for each in profile.options if any(_PLACEMENT_KEYS & choice.override.keys() for choice in each.choices)
    ]
    names = [each.name for each in options]
    choices = [[*_choices(each, default=True), *_choices(each, default=False)] for each in options]
    for some in islice(product(*choices), _MAX_COMBINATIONS):
        yield profile.overridden(dict(zip(names, some, strict=True)))


def _choices(option: ProfileOption, *, default: bool) -> Iterator[Choice]:
    return (choice for choice in option.choices if (choice.name == option.default) is default)


def _gives(profile: Profile, fixed: Mapping[str, object], need: Need) -> bool:
    limit = profile.gpus
    if limit is None or need.type not in limit.types or fixed.get("gpu_type", need.type) != need.type:
        return False
    count = fixed.get("gpus")
    if count is not None:
        return bool(count) and need.gpus in (0, count)
    return not need.gpus or (limit.count.allows(need.gpus) and need.gpus <= limit.most(need.type))


def _lowest(limit: Limit) -> int:
    return min(limit.choices, default=limit.min)
