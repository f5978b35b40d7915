"""Profiles that an administrator offers, with their limits. ``profile_list`` parses their configuration. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from carme_hub.domain.staging.entries import STAGING_KEYS

#: User options of every profile; a profile adds its own ``profile_options``.
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
    "node",
    "folders",
    *STAGING_KEYS,
)

#: Values of ``missing_folder`` for a working folder that does not exist: refuse the start, or make the folder.
MISSING_FOLDER = ("refuse", "make")

#: Keys that an administrator may fix in ``slurm_override``, for a profile or for one choice of it.
OVERRIDE_KEYS = (*(key for key in OPTION_KEYS[1:] if key not in STAGING_KEYS), "partition", "qos")

#: Suffix of an option's name for a typed value outside of its list (as in KubeSpawner).
UNLISTED = "--unlisted-choice"


@dataclass(frozen=True, slots=True)
class Limit:
    """A whole number that users may choose, from ``min`` to ``max``; fixed if both are the same.

    Attributes:
        choices: the only allowed values, in the order of the form; empty = every number in between.
    """

    min: int
    max: int
    default: int
    choices: tuple[int, ...] = ()

    @property
    def fixed(self) -> bool:
        """Whether only one value is allowed."""
        return self.min == self.max

    def allows(self, value: int) -> bool:
        """Return whether the value is within the limit."""
        return self.min <= value <= self.max and (not self.choices or value in self.choices)


@dataclass(frozen=True, slots=True)
class GpuLimit:
    """Allowed GPU types and numbers.

    Attributes:
        types: the largest number for one session by type, in the order of the form.
        count: the limit over all types.
        default_type: one of ``types``; "" only where ``types`` is empty.
    """

    types: Mapping[str, int]
    count: Limit
    default_type: str

    def most(self, type: str) -> int:
        """Return how many GPUs of a type one session may have."""
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
    """A value of a profile option that the user types.

    Attributes:
        pattern: regular expression that the whole value must match.
        override: like a choice's; ``{value}`` in a text is replaced by the typed value.
    """

    display_name: str
    display_name_in_choices: str
    description: str
    pattern: str
    pattern_message: str
    override: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProfileOption:
    """An option of one profile whose choices stand for settings (KubeSpawner's ``profile_options``)."""

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
    """A user option of an installed package, for the profiles that name it in ``fields``.

    The session gets the value in the variable ``CARME_FIELD_<NAME>``, the hub's hooks get it in ``Request.fields``.

    Attributes:
        name: of the user option: lower-case letters, digits and ``_``. display_name: its label in the form.
        description: shown below it. choices: label by value; empty = the user types the value. default: "" = not set.
        check: takes a value that is not empty and returns the session's value; raises ``Refused`` with a sentence that
            says what to enter instead. It is called whenever the form is shown, so it must be fast and make no queries.
    """

    name: str
    display_name: str
    description: str = ""
    choices: Mapping[str, str] = field(default_factory=dict)
    default: str = ""
    check: Callable[[str], str] = unchanged


def field_variable(name: str) -> str:
    """Return the name of the session's environment variable for the value of a field."""
    return f"CARME_FIELD_{name.upper()}"


@dataclass(frozen=True, slots=True)
class Profile:
    """One profile.

    Attributes:
        gpus: None = no GPUs.
        images: names of the allowed images, the first is the default; empty = every image of the site.
        reservation: always used. reservations: those that a user may choose.
        accounts: which accounts may be charged; empty = every account of the user.
        groups: which groups may use the profile; empty = everyone who may start a server.
        override: settings that are fixed for all users of this profile.
        fields: additional fields, from installed packages.
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
        """Return the settings fixed by these choices (option name to choice); later options win."""
        fixed = dict(self.override)
        for option in self.options:
            if option.name in chosen:
                fixed.update(chosen[option.name].override)
        return fixed
