"""Check user options against the offered profiles: one check for form, REST, links and ``carme-hub``. Pure.

``examine`` checks all options, so that a form can show each problem at its field; ``choose`` raises them as one
refusal. Values are whole numbers or exact names: ``2`` and ``"2"`` are the same, ``2.0``, ``true``, ``" 2"`` and
``"1e1"`` are not numbers. A missing option gets the profile's default. An unknown option is an error, so that a
misspelt limit never means "no limit".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from carme_hub.domain.cluster.resources import NO_GPUS, Gpus
from carme_hub.domain.folders.mounts import Mountable
from carme_hub.domain.folders.mounts import chosen as chosen_folders
from carme_hub.domain.staging.entries import ScratchOffer, stage_of
from carme_hub.errors import NoAccount, ProfileNotAllowed, Refused

from .choice_wording import range_text, shown
from .profile import (
    MISSING_FOLDER,
    OPTION_KEYS,
    UNLISTED,
    Choice,
    Limit,
    Profile,
    ProfileField,
    ProfileOption,
    UnlistedChoice,
)
from .profile_list import parse_profiles
from .session import Request

__all__ = [
    "Problem",
    "choose",
    "default_profile",
    "examine",
    "offered_profiles",
    "parse_profiles",
    "require_valid",
    "whole_number",
]

_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
_FOLDER_MAX = 1024
_NODE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem with the user options.

    Attributes:
        field: the user option.
        about_account: no account may be charged; False for a value that the profile does not allow.
    """

    field: str
    message: str
    about_account: bool = False


def whole_number(value: object) -> int | None:
    """Return a whole number from 0 to 999999999 given as a number or a text, or None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if 0 <= value <= 999_999_999 else None
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return int(value)
    return None


def offered_profiles(
    profiles: Sequence[Profile], groups: Collection[str], accounts: Sequence[str] | None
) -> tuple[Profile, ...]:
    """Return the profiles that a user of these groups and Slurm accounts may choose.

    Args:
        accounts: the user's accounts, the default one first; None = the site has no accounts.
    """
    member = set(groups)
    return tuple(
        p
        for p in profiles
        if (not p.groups or member & set(p.groups)) and (accounts is None or _accounts_for(p, accounts))
    )


def default_profile(profiles: Sequence[Profile]) -> Profile | None:
    """Return the default profile: the one marked as default, or the first."""
    return next((p for p in profiles if p.default), profiles[0] if profiles else None)


def choose(
    profiles: Sequence[Profile],
    options: Mapping[str, object],
    *,
    accounts: Sequence[str] | None,
    images: Sequence[str],
    reservations: Collection[str] = (),
) -> Request:
    """Return the request of these user options.

    Args:
        profiles: those offered to the user (see ``offered_profiles``).
        accounts: the user's Slurm accounts, the default one first; None = the site has no accounts.
        images: names of the site's images, the default one first.
        reservations: further reservations that the user may use.

    Raises:
        NoAccount: no account may be charged, and there is no other problem.
        ProfileNotAllowed: any other problem; the message names every problem with its limit.
    """
    return require_valid(*examine(profiles, options, accounts=accounts, images=images, reservations=reservations))


def require_valid(request: Request | None, problems: Sequence[Problem]) -> Request:
    """Return the request that ``examine`` returned, or raise its problems as one refusal."""
    if request is None:
        message = " ".join(p.message for p in problems)
        raise NoAccount(message) if all(p.about_account for p in problems) else ProfileNotAllowed(message)
    return request


def examine(
    profiles: Sequence[Profile],
    options: Mapping[str, object],
    *,
    accounts: Sequence[str] | None,
    images: Sequence[str],
    reservations: Collection[str] = (),
    folders: Sequence[Mountable] = (),
    scratch: ScratchOffer | None = None,
) -> tuple[Request | None, tuple[Problem, ...]]:
    """Return the request, or None and all problems; arguments as of ``choose``, with folders to mount and scratch."""
    named = options.get("profile", "")
    if not profiles:
        if accounts is not None and not accounts:
            return None, (Problem("account", "You have no Slurm account yet, so nothing can be started.", True),)
        return None, (Problem("profile", "No profile is offered to you."),)
    profile = default_profile(profiles) if named == "" else next((p for p in profiles if p.slug == named), None)
    if profile is None:
        there = ", ".join(p.slug for p in profiles)
        return None, (Problem("profile", f"The profile {shown(named)} is not offered to you. Offered: {there}."),)
    return _Validation(profile, options, folders, scratch).run(accounts, images, reservations)


def _accounts_for(profile: Profile, accounts: Sequence[str]) -> list[str]:
    return [a for a in accounts if not profile.accounts or a in profile.accounts]


def _is_short_line(text: str) -> bool:
    return len(text) <= 256 and text.isprintable()


class _Validation:
    """The check of user options against one profile, with the problems found so far."""

    def __init__(
        self,
        profile: Profile,
        options: Mapping[str, object],
        folders: Sequence[Mountable] = (),
        scratch: ScratchOffer | None = None,
    ) -> None:
        self.profile, self.options, self.mountable, self.scratch = profile, options, folders, scratch
        self.problems: list[Problem] = []
        self.fixed: Mapping[str, object] = {}

    def problem(self, field: str, message: str, about_account: bool = False) -> None:
        self.problems.append(Problem(field, message, about_account))

    def run(
        self, accounts: Sequence[str] | None, images: Sequence[str], reservations: Collection[str]
    ) -> tuple[Request | None, tuple[Problem, ...]]:
        profile = self.profile
        self.unknown()
        self.fixed = profile.overridden(self.chosen())
        request = Request(
            profile=profile.slug,
            image=self.image(images),
            gpus=self.gpus(),
            cpus=self.number("cpus", profile.cpus, "CPUs"),
            memory_mib=1024 * self.number("memory_gib", profile.memory_gib, "GiB of memory"),
            time_limit=self.number("time_minutes", profile.time_minutes, "minutes"),
            account=self.account(accounts),
            partition=str(self.fixed.get("partition", profile.partition)),
            qos=str(self.fixed.get("qos", profile.qos)),
            reservation=self.reservation(reservations),
            working_folder=self.folder(),
            make_folder=self.make_folder(),
            node=self.node(),
            fields={one.name: value for one in profile.fields if (value := self.field(one))},
            folders=self.folders(),
            stage=self.stage(),
        )
        return (None if self.problems else request), tuple(self.problems)

    def unknown(self) -> None:
        own = {o.name for o in self.profile.options}
        own |= {o.name + UNLISTED for o in self.profile.options if o.unlisted}
        own |= {each.name for each in self.profile.fields}
        for key in self.options:
            if key not in OPTION_KEYS and key not in own:
                known = ", ".join([*OPTION_KEYS, *sorted(own)])
                self.problem(str(key), f"The option {shown(key)} is not known. Known: {known}.")

    def chosen(self) -> dict[str, Choice]:
        """Return the selected choice of each of the profile's own options."""
        return {o.name: choice for o in self.profile.options if (choice := self.one_choice(o)) is not None}

    def one_choice(self, option: ProfileOption) -> Choice | None:
        typed = self.options.get(option.name + UNLISTED, "")
        named = self.options.get(option.name, "")
        if typed != "" and option.unlisted:
            if named not in ("", option.name + UNLISTED):
                self.problem(option.name, f"{option.display_name}: choose from the list or type a value, not both.")
                return None
            return self.typed_choice(option, option.unlisted, typed)
        if named == option.name + UNLISTED and option.unlisted:
            self.problem(option.name + UNLISTED, f"{option.display_name}: type a value, or choose from the list.")
            return None
        choice = option.choice(option.default if named == "" else named) if isinstance(named, str) else None
        if choice is None:
            there = ", ".join(c.name for c in option.choices) or "none"
            self.problem(option.name, f"{option.display_name}: {shown(named)} is not a choice. Choices: {there}.")
        return choice

    def typed_choice(self, option: ProfileOption, unlisted: UnlistedChoice, typed: object) -> Choice | None:
        if not isinstance(typed, str) or not _is_short_line(typed):
            self.problem(option.name + UNLISTED, f"{option.display_name}: the value must be a short line of text.")
            return None
        if not re.fullmatch(unlisted.pattern, typed):
            rule = unlisted.pattern_message or f"It must match {unlisted.pattern}."
            self.problem(option.name + UNLISTED, f"{option.display_name}: {shown(typed)} is not allowed. {rule}")
            return None
        override = {k: v.replace("{value}", typed) if isinstance(v, str) else v for k, v in unlisted.override.items()}
        return Choice(name=typed, display_name=typed, override=override)

    def field(self, one: ProfileField) -> str:
        """Return the value of a field of an installed package, "" where none is set."""
        requested = self.options.get(one.name, "")
        value = one.default if requested == "" else str(requested)
        if not value:
            return ""
        if one.choices and value not in one.choices:
            there = ", ".join(one.choices)
            self.problem(one.name, f"{one.display_name}: {shown(value)} is not a choice. Choices: {there}.")
            return ""
        try:
            checked = one.check(value) if _is_short_line(value) else ""
        except Refused as error:
            self.problem(one.name, f"{one.display_name}: {error.message}")
            return ""
        if not isinstance(checked, str) or not checked or not _is_short_line(checked):
            self.problem(one.name, f"{one.display_name}: the value must be a short line of text.")
            return ""
        return checked

    def requested(self, key: str, default: object) -> object:
        """Return the fixed value, the requested one, or the default."""
        requested = self.options.get(key, "")
        if any(o.name == key for o in self.profile.options):
            requested = ""  # the profile has an option of this name, whose choices were looked up already
        if key not in self.fixed:
            return default if requested == "" else requested
        fixed = self.fixed[key]
        if requested != "" and (type(requested) not in (int, str) or str(requested) != str(fixed)):
            self.problem(key, f"The option {key} is fixed here at {fixed}; you asked for {shown(requested)}.")
        return fixed

    def number(self, key: str, limit: Limit, unit: str) -> int:
        """Return a number within the limit, or record the problem and return the default."""
        if self.options.get(key) == "" or (value := whole_number(self.requested(key, limit.default))) is None:
            given = shown(self.options.get(key, self.fixed.get(key)))
            self.problem(key, f"{given} is not a whole number of {unit}.")
            return limit.default
        if not limit.allows(value):
            self.problem(key, f"“{self.profile.display_name}” gives {range_text(limit)} {unit}; you asked for {value}.")
            return limit.default
        return value

    def gpus(self) -> Gpus:
        limit = self.profile.gpus
        if limit is None:
            for key, nothing in (("gpus", ("", "0")), ("gpu_type", ("",))):
                value = self.options.get(key, "")
                if value not in nothing and not (key == "gpus" and whole_number(value) == 0):
                    self.problem(key, "This profile gives no GPU.")
            return NO_GPUS
        before = len(self.problems)
        count = self.number("gpus", limit.count, "GPUs")
        type = self.requested("gpu_type", limit.default_type)
        if not isinstance(type, str) or type not in limit.types:
            there = ", ".join(limit.types)
            self.problem("gpu_type", f"{shown(type)} is not a GPU type of this profile. Types: {there}.")
        elif count > limit.most(type):
            name, most = self.profile.display_name, limit.most(type)
            self.problem("gpus", f"“{name}” gives at most {most} × {type}; you asked for {count}.")
        if len(self.problems) > before or not count:
            return NO_GPUS
        return Gpus(str(type), count)

    def image(self, images: Sequence[str]) -> str:
        there = [i for i in self.profile.images if i in images] if self.profile.images else list(images)
        fixed = self.fixed.get("image")
        if isinstance(fixed, str) and fixed in images and fixed not in there and not self.profile.images:
            there.append(fixed)
        if not there:
            self.problem("image", "No container image is set up for this profile; an administrator can fix this.")
            return ""
        image = self.requested("image", there[0])
        if not isinstance(image, str) or image not in there:
            self.problem("image", f"{shown(image)} is not an image of this profile. Images: {', '.join(there)}.")
            return ""
        return image

    def account(self, accounts: Sequence[str] | None) -> str:
        requested = self.requested("account", "")
        if accounts is None:
            if requested != "" and requested not in self.profile.accounts:
                self.problem("account", "No account can be named here: this site keeps no Slurm accounts.")
            return str(requested)
        mine = _accounts_for(self.profile, accounts)
        if not mine:
            wanted = f" (it is for {', '.join(self.profile.accounts)})" if self.profile.accounts else ""
            self.problem("account", f"You have no Slurm account that may be charged for this{wanted}.", True)
            return ""
        if requested == "":
            return mine[0]
        if not isinstance(requested, str) or requested not in mine:
            there = ", ".join(mine)
            self.problem(
                "account", f"You may not charge the account {shown(requested)} for this. Yours: {there}.", True
            )
            return ""
        return requested

    def reservation(self, more: Collection[str]) -> str:
        requested = self.requested("reservation", self.profile.reservation)
        if self.profile.reservation:
            allowed: list[str] = [self.profile.reservation]
        else:
            allowed = ["", *self.profile.reservations, *sorted(more)]
            if "reservation" in self.fixed:
                allowed.append(str(self.fixed["reservation"]))
        if not isinstance(requested, str) or requested not in allowed:
            there = ", ".join(r for r in allowed if r) or "none"
            self.problem("reservation", f"{shown(requested)} is not a reservation you may use here. Yours: {there}.")
            return ""
        return requested

    def folder(self) -> str:
        """Return a folder, absolute or below the home folder. The node checks whether it can be used."""
        folder = self.requested("working_folder", "")
        rule = "is not a folder: give a path from / or one below your home folder, without “..”."
        if not isinstance(folder, str) or len(folder) > _FOLDER_MAX or not folder.isprintable():
            self.problem("working_folder", f"{shown(folder)} {rule}")
            return ""
        if folder in ("~", "~/"):
            return ""
        folder = folder.removeprefix("~/")
        if folder.startswith(("~", " ")) or ".." in folder.split("/") or folder.endswith(" "):
            self.problem("working_folder", f"{shown(folder)} {rule}")
            return ""
        return folder

    def node(self) -> str:
        """Return the name of the only node that may be used, "" = any; whether there is one is known elsewhere."""
        requested = self.requested("node", "")
        if requested != "" and not (isinstance(requested, str) and _NODE.fullmatch(requested)):
            self.problem("node", f"{shown(requested)} is not the name of a node.")
            return ""
        return str(requested)

    def folders(self) -> tuple[Mapping[str, str], ...]:
        """Return the shared folders to mount."""
        found, wrong = chosen_folders(self.requested("folders", ""), self.mountable)
        for message in wrong:
            self.problem("folders", message)
        return tuple(found)

    def stage(self) -> dict[str, object]:
        """Return what is copied to the node and from it."""
        found, problems = stage_of(self.options, self.scratch)
        for key, message in problems:
            self.problem(key, message)
        return found

    def make_folder(self) -> bool:
        """Return whether to make a working folder that does not exist."""
        requested = self.requested("missing_folder", MISSING_FOLDER[0])
        if requested not in MISSING_FOLDER:
            self.problem("missing_folder", f"{shown(requested)} is not {' or '.join(MISSING_FOLDER)}.")
        return requested == MISSING_FOLDER[1]
