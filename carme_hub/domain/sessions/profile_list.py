"""Parse the administrator's ``profile_list`` into profiles, or raise a ``ConfigError`` that names the wrong key. Pure.

The format is KubeSpawner's, so that a list can be reused: ``slug``, ``display_name``, ``description``, ``default``,
``profile_options`` with ``choices`` and ``unlisted_choice``. ``kubespawner_override`` becomes ``slurm_override``. Keys
for Slurm (``gpus``, ``cpus``, …) are our own. No key is ignored.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from carme_hub.domain.cluster.resources import SHARD
from carme_hub.errors import ConfigError

from .profile import (
    OPTION_KEYS,
    OVERRIDE_KEYS,
    UNLISTED,
    Choice,
    GpuLimit,
    Limit,
    Profile,
    ProfileField,
    ProfileOption,
    UnlistedChoice,
)

_PROFILE_KEYS = (
    *("slug", "display_name", "description", "default", "profile_options", "slurm_override"),
    *("gpus", "cpus", "memory_gib", "time_minutes", "time_hours", "images", "partition", "qos"),
    *("reservation", "accounts", "groups", "fields"),
)
_GPU_KEYS = ("types", "min", "max", "default", "default_type", "choices")
_LIMIT_KEYS = ("min", "max", "default", "choices")
_OPTION_KEYS = ("display_name", "choices", "unlisted_choice")
_CHOICE_KEYS = ("display_name", "description", "default", "slurm_override")
_UNLISTED_KEYS = (
    *("enabled", "display_name", "display_name_in_choices", "description_in_choices"),
    *("validation_regex", "validation_message", "slurm_override"),
)
_NUMBER_KEYS = ("gpus", "cpus", "memory_gib", "time_minutes")
_SLUG = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_GPU_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,127}")
_MOST = 999_999_999


def no_field(name: str) -> ProfileField:
    """Raise ``ConfigError``: without installed packages there are no fields."""
    raise ConfigError(f"there is no field {name!r} here")


def parse_profiles(
    profile_list: Sequence[Mapping[str, object]], field_named: Callable[[str], ProfileField] = no_field
) -> tuple[Profile, ...]:
    """Return the profiles in their order.

    Args:
        field_named: returns the field of a name in ``fields``; raises ``ConfigError`` where there is none.

    Raises:
        ConfigError: a key is unknown, a value has the wrong type, or two values contradict each other.
    """
    if isinstance(profile_list, str | Mapping) or not isinstance(profile_list, Sequence):
        raise ConfigError("profile_list must be a list of profiles, each a dict with a display_name.")
    profiles = tuple(_profile(entry, f"profile_list[{n}]", field_named) for n, entry in enumerate(profile_list))
    slugs = [p.slug for p in profiles]
    for slug in slugs:
        if slugs.count(slug) > 1:
            raise ConfigError(f"profile_list has the slug {slug!r} twice; give each profile a slug of its own.")
    if sum(p.default for p in profiles) > 1:
        marked = ", ".join(p.slug for p in profiles if p.default)
        raise ConfigError(f"profile_list marks more than one profile as default: {marked}.")
    return profiles


def _profile(entry: object, where: str, field_named: Callable[[str], ProfileField]) -> Profile:
    data = _dict(entry, where)
    name = data.get("slug") or data.get("display_name")
    where = f"{where} ({name})" if isinstance(name, str) and name else where
    _known(data, _PROFILE_KEYS, where)
    display_name = _text(data, "display_name", where, needed=True)
    slug = _text(data, "slug", where) or re.sub(r"[^a-z0-9]+", "-", display_name.lower()).strip("-")[:63].strip("-")
    if not _SLUG.fullmatch(slug):
        raise ConfigError(f"{where}: slug must be lower-case letters, digits and single hyphens, not {slug!r}.")
    if "time_minutes" in data and "time_hours" in data:
        raise ConfigError(f"{where}: give time_minutes or time_hours, not both.")
    reservation = data.get("reservation", "")
    profile = Profile(
        slug=slug,
        display_name=display_name,
        description=_text(data, "description", where),
        default=_flag(data, "default", where),
        gpus=_gpus(data["gpus"], f"{where}.gpus") if "gpus" in data else None,
        images=_names(data, "images", where, _NAME),
        partition=_name(data, "partition", where),
        qos=_name(data, "qos", where),
        reservation=_name(data, "reservation", where) if isinstance(reservation, str) else "",
        reservations=() if isinstance(reservation, str) else _names(data, "reservation", where, _NAME),
        accounts=_names(data, "accounts", where, _NAME),
        groups=_names(data, "groups", where, None),
        options=_options(data.get("profile_options", {}), f"{where}.profile_options"),
        override=_override(data.get("slurm_override", {}), f"{where}.slurm_override"),
    )
    if "fields" in data:
        profile = replace(profile, fields=_fields(data, where, profile.options, field_named))
    if "cpus" in data:
        profile = replace(profile, cpus=_limit(data["cpus"], f"{where}.cpus", least=1))
    if "memory_gib" in data:
        profile = replace(profile, memory_gib=_limit(data["memory_gib"], f"{where}.memory_gib", least=1))
    if "time_minutes" in data:
        profile = replace(profile, time_minutes=_limit(data["time_minutes"], f"{where}.time_minutes", least=1))
    if "time_hours" in data:
        hours = _limit(data["time_hours"], f"{where}.time_hours", least=1)
        choices = tuple(60 * c for c in hours.choices)
        minutes = Limit(60 * hours.min, 60 * hours.max, 60 * hours.default, choices)
        profile = replace(profile, time_minutes=minutes)
    _overrides_fit(profile, where)
    return profile


def _gpus(value: object, where: str) -> GpuLimit | None:
    if value in (None, 0) and not isinstance(value, bool):
        return None
    data = _dict(value, where)
    _known(data, _GPU_KEYS, where)
    raw = data.get("types")
    if isinstance(raw, Mapping):
        types = {t: _number(n, f"{where}.types[{t}]", least=1) for t, n in raw.items()}
    elif isinstance(raw, Sequence) and not isinstance(raw, str):
        types = dict.fromkeys(raw, _MOST)
    else:
        types = {}
    if not types or not all(isinstance(t, str) and _GPU_TYPE.fullmatch(t) and t != SHARD for t in types):
        raise ConfigError(
            f"{where}.types must list GPU types as in gres.conf, such as ['a100'] or {{'a100': 4}} for at most 4. "
            "GPUs are always asked for by type, since Slurm's limits on a type miss untyped requests."
        )
    limits = {key: data[key] for key in _LIMIT_KEYS if key in data}
    if "max" not in limits and isinstance(raw, Mapping):
        limits["max"] = max(types.values())
    count = _limit({"min": 1, **limits}, where, least=0)
    default_type = data.get("default_type", next(iter(types)))
    if not isinstance(default_type, str) or default_type not in types:
        raise ConfigError(f"{where}.default_type is {default_type!r}; it must be one of {', '.join(types)}.")
    limit = GpuLimit({t: min(n, count.max) for t, n in types.items()}, count, default_type)
    if count.default > limit.most(default_type):
        raise ConfigError(f"{where}: the default of {count.default} is more than there may be of {default_type}.")
    return limit


def _limit(value: object, where: str, *, least: int) -> Limit:
    """Return the limit of ``4`` (fixed) or ``{min, max, default, choices}``."""
    if not isinstance(value, Mapping):
        number = _number(value, where, least=least)
        return Limit(number, number, number)
    data = _dict(value, where)
    _known(data, _LIMIT_KEYS, where)
    raw = data.get("choices", ())
    if isinstance(raw, str | Mapping) or not isinstance(raw, Sequence):
        raise ConfigError(f"{where}.choices must be a list of whole numbers.")
    choices = tuple(_number(c, f"{where}.choices", least=least) for c in raw)
    if "max" not in data and not choices:
        raise ConfigError(f"{where} needs max (or choices): how much one session may have.")
    low = _number(data.get("min", min(choices, default=max(least, 1))), f"{where}.min", least=least)
    high = _number(data.get("max", max(choices, default=0)), f"{where}.max", least=least)
    default = _number(data.get("default", choices[0] if choices else low), f"{where}.default", least=least)
    limit = Limit(low, high, default, choices)
    if low > high:
        raise ConfigError(f"{where}: min {low} is more than max {high}.")
    for number, what in [(default, "default"), *((c, "choice") for c in choices)]:
        if not limit.allows(number):
            raise ConfigError(f"{where}: the {what} {number} is outside its own limits ({low} to {high}).")
    return limit


def _options(value: object, where: str) -> tuple[ProfileOption, ...]:
    found = []
    for name, entry in _dict(value, where).items():
        here = f"{where}.{name}"
        if not re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", name) or name.endswith(UNLISTED):
            raise ConfigError(f"{here}: name an option with lower-case letters, digits, _ and -.")
        if name in OPTION_KEYS and name != "image":
            raise ConfigError(f"{here}: {name} is a setting of every profile; give the option another name.")
        data = _dict(entry, here)
        _known(data, _OPTION_KEYS, here)
        choices, default = _choices(data.get("choices", {}), f"{here}.choices")
        unlisted = _unlisted(data.get("unlisted_choice", {}), f"{here}.unlisted_choice")
        if not choices and unlisted is None:
            raise ConfigError(f"{here} needs choices.")
        display_name = _text(data, "display_name", here) or name
        found.append(ProfileOption(name, display_name, choices, default, unlisted))
    return tuple(found)


def _fields(
    data: Mapping[str, object],
    where: str,
    options: Sequence[ProfileOption],
    field_named: Callable[[str], ProfileField],
) -> tuple[ProfileField, ...]:
    found: list[ProfileField] = []
    for name in _names(data, "fields", where, None):
        if name in OPTION_KEYS or name in {*(each.name for each in options), *(each.name for each in found)}:
            raise ConfigError(f"{where}.fields: {name} is the name of another option of the profile.")
        try:
            found.append(field_named(name))
        except ConfigError as error:
            raise ConfigError(f"{where}.fields: {error}") from error
    return tuple(found)


def _choices(value: object, where: str) -> tuple[tuple[Choice, ...], str]:
    choices, default = [], ""
    for name, entry in _dict(value, where).items():
        here = f"{where}.{name}"
        data = _dict(entry, here)
        _known(data, _CHOICE_KEYS, here)
        override = _override(data.get("slurm_override", {}), f"{here}.slurm_override")
        display_name = _text(data, "display_name", here) or name
        choices.append(Choice(name, display_name, _text(data, "description", here), override))
        if _flag(data, "default", here):
            if default:
                raise ConfigError(f"{where} marks two choices as default: {default} and {name}.")
            default = name
    return tuple(choices), default or (choices[0].name if choices else "")


def _unlisted(value: object, where: str) -> UnlistedChoice | None:
    data = _dict(value, where)
    _known(data, _UNLISTED_KEYS, where)
    if not _flag(data, "enabled", where):
        return None
    pattern = _text(data, "validation_regex", where) or ".+"
    try:
        re.compile(pattern)
    except re.error as e:
        raise ConfigError(f"{where}.validation_regex is not a regular expression: {e}.") from e
    return UnlistedChoice(
        display_name=_text(data, "display_name", where) or "Other",
        display_name_in_choices=_text(data, "display_name_in_choices", where) or "Other…",
        description=_text(data, "description_in_choices", where),
        pattern=pattern,
        pattern_message=_text(data, "validation_message", where),
        override=_override(data.get("slurm_override", {}), f"{where}.slurm_override", typed=True),
    )


def _override(value: object, where: str, *, typed: bool = False) -> dict[str, object]:
    data = _dict(value, where)
    _known(data, OVERRIDE_KEYS, where)
    for key, setting in data.items():
        if key in _NUMBER_KEYS and not (typed and isinstance(setting, str)):
            _number(setting, f"{where}.{key}", least=0)
        elif not isinstance(setting, str | int) or isinstance(setting, bool):
            raise ConfigError(f"{where}.{key} must be a text, not {setting!r}.")
    return data


def _overrides_fit(profile: Profile, where: str) -> None:
    """Refuse fixed values that the profile's own limits would refuse for every user."""
    for fixed in [profile.override, *(c.override for o in profile.options for c in o.choices)]:
        if profile.gpus is None and fixed.keys() & {"gpus", "gpu_type"}:
            raise ConfigError(f"{where}: slurm_override names GPUs, but the profile has no gpus to take them from.")
        if profile.gpus is not None and fixed.get("gpu_type", profile.gpus.default_type) not in profile.gpus.types:
            raise ConfigError(f"{where}: slurm_override.gpu_type is {fixed['gpu_type']!r}, which gpus.types has not.")
        limits = {"cpus": profile.cpus, "memory_gib": profile.memory_gib, "time_minutes": profile.time_minutes}
        if profile.gpus is not None:
            limits["gpus"] = profile.gpus.count
        for key, limit in limits.items():
            value = fixed.get(key, limit.default)
            if not isinstance(value, int) or not limit.allows(value):
                raise ConfigError(
                    f"{where}: slurm_override.{key} is {value}, outside the profile's limits "
                    f"({limit.min} to {limit.max}); widen {key}."
                )


def _known(data: Mapping[str, object], known: Sequence[str], where: str) -> None:
    for key in data:
        if key == "kubespawner_override":
            raise ConfigError(
                f"{where}.kubespawner_override is KubeSpawner's. Here it is slurm_override, with "
                f"{', '.join(OVERRIDE_KEYS)}."
            )
        if key not in known:
            near = difflib.get_close_matches(str(key), known, 1, 0.5)
            hint = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(known)}."
            raise ConfigError(f"{where} has the unknown key {key!r}. {hint}")


def _dict(value: object, where: str) -> dict[str, object]:
    if not isinstance(value, Mapping) or not all(isinstance(k, str) for k in value):
        raise ConfigError(f"{where} must be a dict with texts as keys, not {value!r}.")
    return dict(value)


def _text(data: Mapping[str, object], key: str, where: str, *, needed: bool = False) -> str:
    value = data.get(key, "")
    if not isinstance(value, str) or (needed and not value.strip()):
        raise ConfigError(f"{where}.{key} must be a text{' and is needed' if needed else ''}.")
    return value


def _flag(data: Mapping[str, object], key: str, where: str) -> bool:
    value = data.get(key, False)
    if not isinstance(value, bool):
        raise ConfigError(f"{where}.{key} must be True or False, not {value!r}.")
    return value


def _name(data: Mapping[str, object], key: str, where: str) -> str:
    value = _text(data, key, where)
    if value and not _NAME.fullmatch(value):
        raise ConfigError(f"{where}.{key} is {value!r}, which is not a name that Slurm takes.")
    return value


def _names(data: Mapping[str, object], key: str, where: str, pattern: re.Pattern[str] | None) -> tuple[str, ...]:
    value = data.get(key, ())
    if isinstance(value, str | Mapping) or not isinstance(value, Sequence):
        raise ConfigError(f"{where}.{key} must be a list of names, such as ['{value or 'name'}'].")
    for name in value:
        if not isinstance(name, str) or not name or (pattern and not pattern.fullmatch(name)):
            raise ConfigError(f"{where}.{key} has {name!r}, which is not a name.")
    return tuple(value)


def _number(value: object, where: str, *, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST:
        raise ConfigError(f"{where} must be a whole number of at least {least}, not {value!r}.")
    return value
