"""An ``environment.yml`` with packages of conda: what it may say, and the form in which the job gets it. Pure.

A file whose packages are of pip alone is a list for the base's own Python (``builds.requirements_of_environment``).
Channels are those that the site allows, each with the address from which its nodes fetch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from .builds import MOST_TEXT, CannotBuild, checked_text

#: What a kernel needs.
KERNEL = "ipykernel"
#: Names that are left out: of the one who wrote the file.
_IGNORED = ("name", "prefix")
_MOST = 500
_PACKAGE = re.compile(r"(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*)(?P<rest>(?:[ \t]*[=<>!~][A-Za-z0-9_.*,|=<>!~ \t+-]*)?)")
_PIP_NAME = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class CondaEnvironment:
    """What is to be installed.

    Attributes:
        channels: their names, the first one first. packages: as conda's specifications are written. pip: the packages
            that its own pip installs, as a file of requirements, "" for none.
    """

    channels: tuple[str, ...]
    packages: tuple[str, ...]
    pip: str = ""

    def text(self) -> str:
        """Return it as an environment.yml: JSON, which YAML includes."""
        packages: list[object] = [*self.packages]
        if self.pip:
            packages.append({"pip": self.pip.splitlines()})
        said = {"channels": [*self.channels], "dependencies": packages}
        return json.dumps(said, indent=1) + "\n"


def has_conda_packages(value: object) -> bool:
    """Return whether a file names packages of conda besides Python and pip, which a base has."""
    found = value.get("dependencies") if isinstance(value, dict) else None
    return isinstance(found, list) and any(
        isinstance(each, str) and not re.match(r"(python|pip)\b(?![-_.])", each.strip()) for each in found
    )


def parse_environment(value: object, allowed: Mapping[str, str]) -> CondaEnvironment:
    """Return what a file says.

    Args:
        value: of its YAML. allowed: addresses of the channels that the site allows, by name.

    Raises:
        CannotBuild: it cannot be built; the message says what to do.
    """
    if not isinstance(value, dict) or not isinstance(value.get("dependencies"), list):
        raise CannotBuild("The file is no environment.yml: it has no list of dependencies.")
    unknown = sorted(str(each)[:40] for each in value if each not in ("channels", "dependencies", *_IGNORED))
    if unknown:
        raise CannotBuild(f"environment.yml has {', '.join(unknown)}, which cannot be used here: leave it out.")
    packages, lines = _dependencies(value["dependencies"])
    pip = checked_text("\n".join(lines)) if lines else ""
    names = {re.split(r"[ =<>!~]", each, maxsplit=1)[0].lower() for each in packages}
    of_pip = {match[0].lower() for each in lines if (match := _PIP_NAME.match(each.strip()))}
    if pip and "python" not in names:
        raise CannotBuild("environment.yml has packages of pip, so list python, and pip, among those of conda.")
    if KERNEL not in names | of_pip:
        packages.append(KERNEL)
    found = CondaEnvironment(_channels(value.get("channels"), allowed), tuple(packages), pip)
    if len(found.text()) > MOST_TEXT:
        raise CannotBuild(f"environment.yml is too long: at most {MOST_TEXT >> 10} KiB.")
    return found


def _dependencies(dependencies: list[object]) -> tuple[list[str], list[str]]:
    packages: list[str] = []
    lines: list[str] = []
    for each in dependencies:
        if isinstance(each, dict) and set(each) == {"pip"} and isinstance(each["pip"], list):
            lines += [line if isinstance(line, str) else "/" for line in each["pip"]]
            continue
        text = each.strip() if isinstance(each, str) else ""
        if "::" in text:
            raise CannotBuild(f"“{text[:80]}” names a channel: list the channel under “channels:”.")
        if not _PACKAGE.fullmatch(text):
            raise CannotBuild(
                f"“{str(each)[:80]}” is not a package as it is written here: a name, and a version if you like, as "
                "numpy, numpy=2.1 or numpy>=2,<3."
            )
        packages.append(text)
    if not packages:
        raise CannotBuild("The list names no package.")
    if len(packages) > _MOST:
        raise CannotBuild(f"The list is too long: at most {_MOST} packages of conda.")
    return packages, lines


def _channels(channels: object, allowed: Mapping[str, str]) -> tuple[str, ...]:
    there = ", ".join(allowed)
    if not allowed:
        raise CannotBuild(
            "This site allows no channel of conda. List the packages below “pip:” by their names on PyPI."
        )
    if channels is None:
        return tuple(allowed)
    if not isinstance(channels, list) or not all(isinstance(each, str) for each in channels):
        raise CannotBuild("“channels:” is a list of names.")
    found = []
    for each in channels:
        name = each.strip()
        if name == "nodefaults":
            continue
        known = next((key for key, url in allowed.items() if name.rstrip("/") in (key, url.rstrip("/"))), None)
        if known is None:
            raise CannotBuild(f"The channel {name[:80]} is not allowed here. Allowed are {there}.")
        found.append(known)
    return tuple(dict.fromkeys(found)) or tuple(allowed)
