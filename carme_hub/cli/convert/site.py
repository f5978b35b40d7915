"""What a conversion makes: settings of Carme Hub, code of the old file that is kept, and the findings."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from carme_hub.containers.check import check_bind
from carme_hub.containers.runtime import Bind
from carme_hub.errors import ContainerError

from .findings import Finding, Level
from .reading.shell import is_template

#: Stands in the new file where somebody has to write a value.
TODO = "TODO"
#: In place of a type of GPUs that the old file does not name. The form shows it; Slurm refuses it.
GPU_TYPE_TODO = "TODO-gpu-type"
#: Where an image is expected that the old file does not name.
IMAGE_STORE = "/opt/images"
#: How many minutes, CPUs and GiB a profile offers at most where neither the old file nor sinfo says it.
FALLBACK = {"time_minutes": 480, "cpus": 4, "memory_gib": 16}
_HOME = re.compile(r"(/home|~|\$\{?HOME\}?|/home/(\$\{?USER\}?|\{username\}))/?")
_FORMATS = {".sif": "sif", ".simg": "sif", ".sqsh": "sqfs", ".sqfs": "sqfs", ".squashfs": "sqfs"}


@dataclass
class ConvertedProfile:
    """A profile, and the comments above it in the new file."""

    data: dict[str, Any]
    comments: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class KeptCode:
    """Code of the old file, from one of its lines to another."""

    line: int
    end: int
    text: str


@dataclass
class Site:
    """The new site.

    Attributes:
        file: the old file's name, in findings and in the new file's first lines.
        config: the name of the configuration object in the kept code.
        code: kept code, in the order of the old file; it may use the names that earlier code defines.
        hub: settings after ``configure(c)``, by class and name, for the hub's TLS.
        images: by name. binds: by destination. extra: options of sbatch for every session.
        slurm: settings of CarmeSlurm. spawner: further settings of SlurmContainerSpawner.
        notes: comments with a TODO for which no setting can be written.
    """

    file: str
    config: str = "c"
    findings: list[Finding] = field(default_factory=list)
    code: list[KeptCode] = field(default_factory=list)
    hub: dict[str, Any] = field(default_factory=dict)
    images: dict[str, dict[str, Any]] = field(default_factory=dict)
    binds: dict[str, Bind] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    extra: dict[str, str] = field(default_factory=dict)
    profiles: list[ConvertedProfile] = field(default_factory=list)
    slurm: dict[str, Any] = field(default_factory=dict)
    spawner: dict[str, Any] = field(default_factory=dict)
    runtime: str = ""
    notes: list[str] = field(default_factory=list)

    def say(self, line: int, setting: str, level: Level, sentence: str, file: str = "") -> None:
        """Add a finding, once."""
        finding = Finding(file or self.file, line, setting, level, sentence)
        if finding not in self.findings:
            self.findings.append(finding)

    # -- images and binds ----------------------------------------------------------------------------------------------

    def add_image(self, path: str, *, description: str = "", name: str = "", runtime: str = "apptainer") -> str:
        """Offer an image; return its name, "" if the path is no path on a node."""
        if path.startswith("/") and not re.search(r"[$`\s\x00]", path) and not is_template(path):
            place, form = path, _FORMATS.get(PurePosixPath(path).suffix, "dir")
        elif runtime == "pyxis" and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._@:/#-]*", path):
            place, form = path, "ref"
        else:
            return ""
        name = self.new_image_name(name or PurePosixPath(path.partition(":")[0]).stem, place)
        if self.runtime not in ("", runtime):
            form = "dir" if form == "ref" else form
        self.runtime = self.runtime or runtime
        self.images[name] = {"name": name, "path": place, "format": form}
        if description:
            self.images[name]["description"] = description
        return name

    def add_missing_image(self, name: str, description: str = "") -> str:
        """Offer an image that somebody has to make; return its name."""
        name = self.new_image_name(name, f"{IMAGE_STORE}/{slug(name)}")
        self.images[name] = {"name": name, "path": f"{IMAGE_STORE}/{name}"}
        if description:
            self.images[name]["description"] = description
        return name

    def new_image_name(self, name: str, path: str) -> str:
        """Return a name that no image with another path has."""
        base = name = re.sub(r"[^A-Za-z0-9_.+-]+", "-", name).strip("-_.+")[:60] or "image"
        number = 2
        while name in self.images and self.images[name]["path"] != path:
            name, number = f"{base}-{number}", number + 1
        return name

    def add_bind(self, text: str, line: int, setting: str, file: str = "") -> None:
        """Bind a folder of the nodes, as ``source[:destination[:ro]]``; say it where that is not possible."""
        source, _, rest = text.partition(":")
        destination, _, mode = rest.partition(":")
        destination = destination or source
        if _HOME.fullmatch(source):
            self.say(line, f"{setting} {text}", Level.DROPPED, "the user's home is always in the container", file)
            return
        bind = Bind(source.rstrip("/"), destination.rstrip("/"), "ro" if "ro" in mode.split(",") else "rw")
        try:
            check_bind(bind)
        except ContainerError as error:
            sentence = f"it is no bind here: {error}" if source.startswith("/") else "its path is not a constant"
            self.say(line, f"{setting} {text}", Level.LOOK, f"{sentence}; container_binds has what all need", file)
            return
        self.binds.setdefault(bind.destination, bind)
        self.say(line, f"{setting} {text}", Level.CHANGED, "container_binds, for every session", file)

    # -- profiles ------------------------------------------------------------------------------------------------------

    def add_profile(self, data: dict[str, Any], comments: list[str] | None = None) -> ConvertedProfile:
        """Offer a profile; its slug becomes one that no other profile has."""
        taken = {profile.data["slug"] for profile in self.profiles}
        base = slug(str(data.get("slug") or data["display_name"]))
        name, number = base, 2
        while name in taken:
            name, number = f"{base[:58]}-{number}", number + 1
        profile = ConvertedProfile({**data, "slug": name}, comments or [])
        self.profiles.append(profile)
        return profile


def slug(text: str) -> str:
    """Return a text as a profile's slug."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60].strip("-") or "profile"


def limit(most: int, default: int | None = None, least: int = 1) -> dict[str, int]:
    """Return a limit of a profile."""
    return {
        "min": min(least, most),
        "max": most,
        "default": most if default is None else max(least, min(default, most)),
    }
