"""What an administrator offers: typed profiles with their limits. How they are written is in ``profile_list``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

#: User options that every profile knows; a profile adds its own ``profile_options``.
OPTION_KEYS = (
    "profile",
    "gpu_type",
    "gpus",
    "cpus",
    "memory_gib",
    "time_minutes",
    "image",
    "account",
    "reservation",
    "working_folder",
    "missing_folder",
)

#: What ``missing_folder`` may say of a working folder that does not exist: start nothing, or make it.
MISSING_FOLDER = ("refuse", "make")

#: Keys that an administrator may fix in ``slurm_override``, for a profile or for one choice of it.
OVERRIDE_KEYS = (*OPTION_KEYS[1:], "partition", "qos")

#: What follows an option's name where a value outside its list is typed in (KubeSpawner's way).
UNLISTED = "--unlisted-choice"


@dataclass(frozen=True, slots=True)
class Limit:
    """A whole number that people may choose, from ``min`` to ``max``; fixed where both are the same.

    Attributes:
        choices: the only values allowed, in the order they are shown; empty = every number in between.
    """

    min: int
    max: int
    default: int
    choices: tuple[int, ...] = ()

    @property
    def fixed(self) -> bool:
        """Whether there is nothing to choose."""
        return self.min == self.max

    def allows(self, value: int) -> bool:
        """Return whether the value is inside."""
        return self.min <= value <= self.max and (not self.choices or value in self.choices)


@dataclass(frozen=True, slots=True)
class GpuLimit:
    """Which types of GPU, and how many.

    Attributes:
        types: type to the most that one session may have of it, in the order they are shown.
        count: the limit over all types.
        default_type: one of ``types``; "" only where ``types`` is empty.
    """

    types: Mapping[str, int]
    count: Limit
    default_type: str

    def most(self, type: str) -> int:
        """Return how many of the type one session may have."""
        return min(self.count.max, self.types.get(type, 0))


@dataclass(frozen=True, slots=True)
class Choice:
    """One value of a profile option."""

    name: str
    display_name: str
    description: str = ""
    override: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UnlistedChoice:
    """A profile option's value that is typed in.

    Attributes:
        pattern: regular expression that the whole value must match.
        override: like a choice's; ``{value}`` in a text stands for what was typed.
    """

    display_name: str
    display_name_in_choices: str
    description: str
    pattern: str
    pattern_message: str
    override: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProfileOption:
    """A choice with names of its own, each standing for settings (KubeSpawner's ``profile_options``)."""

    name: str
    display_name: str
    choices: tuple[Choice, ...]
    default: str
    unlisted: UnlistedChoice | None = None

    def choice(self, name: str) -> Choice | None:
        """Return the choice of that name."""
        return next((c for c in self.choices if c.name == name), None)


def unchanged(value: str) -> str:
    """Return a value as it is."""
    return value


@dataclass(frozen=True, slots=True)
class ProfileField:
    """A value of the user options that an installed package adds to those profiles that name it in ``fields``.

    It reaches the session as the variable ``CARME_FIELD_<NAME>``, and the hub's hooks as ``Request.fields``.

    Attributes:
        name: of the user option: small letters, digits and ``_``. display_name: its label in the form.
        description: said below it. choices: value to label; empty = it is typed in. default: "" = not set.
        check: takes a value that is not empty and returns what the session gets; raises ``Refused`` with what to write
            instead. It is called at every look at the form, so it asks nobody.
    """

    name: str
    display_name: str
    description: str = ""
    choices: Mapping[str, str] = field(default_factory=dict)
    default: str = ""
    check: Callable[[str], str] = unchanged


def field_variable(name: str) -> str:
    """Return the variable by which a session learns the value of a field."""
    return f"CARME_FIELD_{name.upper()}"


@dataclass(frozen=True, slots=True)
class Profile:
    """One offer.

    Attributes:
        gpus: None = no GPU can be had.
        images: names of the images to choose from, the first is the default; empty = every image of the site.
        reservation: always used. reservations: those that may be chosen instead of none.
        accounts: who may be charged; empty = every account of the user.
        groups: who is offered this; empty = everyone who may start a server.
        override: settings that are fixed for everyone who takes this profile.
        fields: of installed packages.
    """

    slug: str
    display_name: str
    description: str = ""
    default: bool = False
    gpus: GpuLimit | None = None
    cpus: Limit = field(default=Limit(2, 2, 2))
    memory_gib: Limit = field(default=Limit(4, 4, 4))
    time_minutes: Limit = field(default=Limit(60, 60, 60))
    images: tuple[str, ...] = ()
    partition: str = ""
    qos: str = ""
    reservation: str = ""
    reservations: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    options: tuple[ProfileOption, ...] = ()
    override: Mapping[str, object] = field(default_factory=dict)
    fields: tuple[ProfileField, ...] = ()

    def overridden(self, chosen: Mapping[str, Choice]) -> dict[str, object]:
        """Return what is fixed once these choices (option name to choice) are made; later options win."""
        fixed = dict(self.override)
        for option in self.options:
            if option.name in chosen:
                fixed.update(chosen[option.name].override)
        return fixed
