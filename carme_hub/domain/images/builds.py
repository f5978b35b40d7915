"""Images that users build: what may be asked for, how many, how large, and for how long they stay. Pure.

A user's image is a *layer* of Python packages on top of a base image, in the folder of that user, so nobody else can
see it. A base with a digest is pinned to it. ``spawners.companions.image_builds`` opens builds, the ``images`` service
keeps their terms, and ``carme-hub image publish`` makes an image of the store of one that is offered to others.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from carme_hub.errors import Refused

from .offers import NAME
from .wanted import Wanted

#: Kinds of builds that are more than packages of pip: a whole system, and an environment of conda.
CONTAINERFILE, CONDA = "containerfile", "conda"
#: Beginning of the id of the batch job that builds an image, which is where a run has its name.
BATCH = "image-"
#: Characters of a list of packages: it is a part of the job's data document.
MOST_TEXT = 32 << 10
#: Days before its end of which a user is told.
TOLD_BEFORE = 14.0
#: Seconds after which a build that never became a job has failed.
NEVER_BEGUN = 600.0
_MOST_LINES, _DAY = 2000, 86_400.0
#: Options that a file of requirements may have; others are of pip's command line, or name files that are not there.
_OPTIONS = re.compile(
    r"(--(index-url|extra-index-url|find-links|no-index|no-binary|only-binary|prefer-binary|pre)\b|-[if]\b)"
)
_SECRET_URL = re.compile(r"://(?!git@)[^/@\s]+@")
_LOCAL = re.compile(r"(\.{0,2}/|~|file:)|[^#]*\s@\s*(\.{0,2}/|~)")
#: What no page can show, or what shows a text in another order than it is (Unicode TR 36, 2.5).
_HIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class CannotBuild(Refused):
    """The image cannot be built so; the message says what to do."""

    reason = "image-build"


class BuildState(Enum):
    """The state of a build. ``REMOVED`` is final."""

    BUILDING = "building"
    READY = "ready"
    FAILED = "failed"
    REMOVED = "removed"


#: States in which a build has its name, so that nobody else can use it.
NAMED = (BuildState.BUILDING, BuildState.READY)


@dataclass(frozen=True, slots=True)
class Build:
    """One image of a user. Times are UTC epoch seconds; 0 and "" mean not yet, or none.

    Attributes:
        id: of its batch job, and name of its folder. base: name of the image below it; base_digest: what that is.
        kind: requirements, packages (of a session), environment, conda or containerfile. text: the packages, as pip
            takes them; or what the environment.yml or the Containerfile says.
        days: without use after which it is removed. problem: why it failed or was removed. used: when a session last
            had it. told: when its user was told that it will be removed.
        published: name of the store's image that was made of it.
    """

    id: str
    user: str
    name: str
    base: str
    base_digest: str = ""
    kind: str = "requirements"
    text: str = ""
    description: str = ""
    state: BuildState = BuildState.BUILDING
    created: float = 0.0
    ended: float = 0.0
    used: float = 0.0
    told: float = 0.0
    days: float = 90.0
    problem: str = ""
    wanted: Wanted | None = None
    published: str = ""

    @property
    def is_pinned(self) -> bool:
        """Whether one can say what the image is: its base has a digest, or it is a whole system by itself."""
        return bool(self.base_digest) or self.kind == CONTAINERFILE

    @property
    def last(self) -> float:
        """When it was last used, built or asked for."""
        return max(self.used, self.ended, self.created)

    def layer(self, home: str) -> str:
        """Return the folder of its packages, for a home on compute nodes."""
        return f"{home}/.carme/images/{self.id}"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a user may build: ``builds`` at once, each of ``gib`` and ``minutes``; kept for ``days`` without use."""

    builds: int = 5
    gib: float = 10.0
    minutes: int = 120
    days: float = 90.0


def limits_for(groups: Collection[str], said: Mapping[str, Mapping[str, Any]]) -> Limits:
    """Return the limits of a user: of those that hold for them, the largest of each kind.

    Args:
        said: by group, and with "" for everybody, as ``CarmeImages.build_limits`` has them.
    """
    mine = [values for group, values in said.items() if group == "" or group in groups]
    usual = Limits()

    def most(name: str) -> Any:
        return max((values[name] for values in mine if name in values), default=getattr(usual, name))

    return Limits(int(most("builds")), float(most("gib")), int(most("minutes")), float(most("days")))


def checked_name(name: object) -> str:
    """Return a name for an image; raise ``CannotBuild`` where it is none."""
    if not isinstance(name, str) or not NAME.fullmatch(name) or len(name) > 40:
        raise CannotBuild("A name is 1 to 40 lower-case letters, digits and . _ -, and begins with a letter or digit.")
    return name


def checked_description(text: str) -> str:
    """Return a description as one line; raise ``CannotBuild`` where it has characters that cannot be shown."""
    _check_shown(text)
    return " ".join(text.split())[:200]


def _check_shown(text: str) -> None:
    if (found := _HIDDEN.search(text)) is not None:
        raise CannotBuild(f"It has a character that cannot be shown (U+{ord(found[0]):04X}). Leave it out.")


def checked_text(text: object) -> str:
    """Return the packages of a build, as a file of requirements.

    Raises:
        CannotBuild: it is none, too long, contains a password, or names files that the job does not have.
    """
    if not isinstance(text, str) or "\0" in text:
        raise CannotBuild("The packages are lines of text, as in requirements.txt.")
    _check_shown(text)
    if len(text) > MOST_TEXT or text.count("\n") > _MOST_LINES:
        raise CannotBuild(f"The list of packages is too long: at most {MOST_TEXT >> 10} KiB and {_MOST_LINES} lines.")
    if _SECRET_URL.search(text):
        raise CannotBuild("The packages contain a password. Put it into ~/.config/pip/pip.conf or ~/.netrc, mode 0600.")
    lines = [line.strip() for line in text.replace("\r\n", "\n").replace("\\\n", " ").split("\n")]
    wanted = [line for line in lines if line and not line.startswith("#")]
    for line in wanted:
        if line.startswith("-") and not _OPTIONS.match(line):
            raise CannotBuild(f"“{line[:80]}” cannot be used here: list the packages themselves, one on each line.")
        if _LOCAL.match(line):
            raise CannotBuild(f"“{line[:80]}” is a file: name the package, or a URL that the job can reach.")
    if not any(not line.startswith("-") for line in wanted):
        raise CannotBuild("The list names no package.")
    return "\n".join(lines).strip() + "\n"


def requirements_of_environment(value: object) -> str:
    """Return the packages of an ``environment.yml``, which must be of pip alone: the base has its own Python.

    Args:
        value: what the file says.

    Raises:
        CannotBuild: it has packages of conda, or is no environment.
    """
    found = value.get("dependencies") if isinstance(value, dict) else None
    if not isinstance(found, list):
        raise CannotBuild("The file is no environment.yml: it has no list of dependencies.")
    lines: list[str] = []
    conda: list[str] = []
    for each in found:
        if isinstance(each, dict) and set(each) == {"pip"} and isinstance(each["pip"], list):
            lines += [line if isinstance(line, str) else "/" for line in each["pip"]]
        elif isinstance(each, str) and re.match(r"(python|pip)\b(?![-_.])", each.strip()):
            continue  # the base has them
        else:
            conda.append(each if isinstance(each, str) else "something that is no name")
    if conda:
        named = ", ".join(conda)[:200]
        raise CannotBuild(
            f"These are packages of conda, which are not built here: {named}. List them below “pip:” by their names on "
            "PyPI, or ask an administrator for a base image that has them."
        )
    return checked_text("\n".join(lines))


def check_room(mine: Iterable[Build], limits: Limits) -> None:
    """Raise ``CannotBuild`` where a user may have no more images."""
    if not limits.builds:
        raise CannotBuild("You may not build images here. Ask an administrator.")
    have = [each.name for each in mine if each.state in NAMED]
    if len(have) >= limits.builds:
        raise CannotBuild(
            f"You may have {limits.builds} images of your own here, and have {', '.join(sorted(have)[:10])}. "
            "Remove one first."
        )


def removed_at(build: Build) -> float:
    """Return when a build is removed unless it is used before."""
    told = build.told if build.told > build.last else 0.0
    return max(build.last + build.days * _DAY, told + TOLD_BEFORE * _DAY if told else 0.0)


def is_to_be_told(build: Build, now: float) -> bool:
    """Return whether its user is to be told that it will be removed."""
    soon = build.last + max(0.0, build.days - TOLD_BEFORE) * _DAY
    return build.state is BuildState.READY and now >= soon and build.told <= build.last


def is_over(build: Build, now: float) -> bool:
    """Return whether a build is removed now: nobody used it for long, and its user was told of it in time."""
    return build.state is BuildState.READY and build.told > build.last and now >= removed_at(build)


def own(builds: Iterable[Build], user: str) -> list[Build]:
    """Return what a user sees of their builds, the newest first: those that are there, and recent failures."""
    mine = [each for each in builds if each.user == user and each.state is not BuildState.REMOVED]
    return sorted(mine, key=lambda each: -each.created)


_PURL = {"python": "pypi", "conda": "conda", "debian": "deb/debian"}


def bill_of_materials(name: str, digest: str, packages: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Return the packages of an image as a CycloneDX 1.5 document (https://cyclonedx.org/docs/1.5/json/)."""
    components = [
        {
            "type": "library",
            "name": each,
            "version": version,
            "purl": f"pkg:{_PURL.get(kind, 'generic')}/{each}@{version}",
        }
        for kind, some in packages.items()
        for each, version in some.items()
    ]
    about = {"type": "container", "name": name, "version": digest}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": about, "tools": [{"name": "carme-hub"}]},
        "components": components,
    }
