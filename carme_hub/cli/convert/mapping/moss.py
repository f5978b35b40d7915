"""jupyterhub_moss: each partition becomes a profile, and each Jupyter environment an image.

jupyterhub_moss asks sinfo for what its file leaves out. The conversion asks nobody: it reads the answer from a file, or
takes a small number and marks it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from carme_hub.cli.convert.findings import Level
from carme_hub.cli.convert.reading.config_file import ConfigFile, Setting
from carme_hub.cli.convert.reading.values import Unknown
from carme_hub.cli.convert.site import FALLBACK, GPU_TYPE_TODO, TODO, Site, limit, slug

SECTION = "MOSlurmSpawner"
#: What becomes of the fields of a partition, and of the other settings of the class.
MOSS: dict[str, tuple[Level, str]] = {
    "partitions": (Level.CHANGED, "`profile_list`: one profile for each partition"),
    "description": (Level.CHANGED, "`display_name` of the profile"),
    "architecture": (Level.CHANGED, "`description` of the profile; images are of one architecture"),
    "gpu": (Level.CHANGED, "the type in `gpus` of the profile"),
    "max_ngpus": (Level.CHANGED, "`gpus` of the profile: the most for one session"),
    "max_nprocs": (Level.CHANGED, "`cpus` of the profile: the most for one session"),
    "max_runtime": (Level.CHANGED, "`time_minutes` of the profile: the most for one session; it was in seconds"),
    "simple": (Level.DROPPED, "there is one form, without tabs; put the profiles that most need first"),
    "jupyter_environments": (Level.LOOK, "images: each environment needs an image with its packages"),
    "slurm_info_cmd": (Level.DROPPED, "the hub asks Slurm itself"),
    "slurm_info_template": (Level.DROPPED, "the hub asks Slurm itself"),
    "spawn_page": (Level.DROPPED, "the form is made of the profiles"),
    "default_partition": (Level.CHANGED, "`default` of the profile"),
    "singularity_cmd": (Level.DROPPED, "`container_runtime` starts containers"),
}


@dataclass(frozen=True, slots=True)
class PartitionSize:
    """The largest node of a partition, as sinfo says it.

    Attributes:
        cpus: of a node. memory_mib: of a node. minutes: the time limit; 0 = none.
        gpus: how many of each type a node has.
    """

    cpus: int
    memory_mib: int
    minutes: int
    gpus: Mapping[str, int]


#: What writes the file that ``read_sinfo`` reads.
SINFO = "sinfo -a --noheader -o '%R|%c|%m|%l|%G'"


def read_sinfo(text: str) -> dict[str, PartitionSize]:
    """Return the partitions in the answer of ``SINFO``; lines of another form are left out."""
    found: dict[str, PartitionSize] = {}
    for row in text.splitlines():
        parts = [part.strip() for part in row.split("|")]
        if len(parts) != 5 or not parts[1].rstrip("+").isdecimal() or not parts[2].rstrip("+").isdecimal():
            continue
        name, before = parts[0].rstrip("*"), found.get(parts[0].rstrip("*"))
        gpus = dict(before.gpus) if before else {}
        for kind, count in re.findall(r"gpu:([\w.-]+):(\d+)", parts[4]):
            gpus[kind] = max(gpus.get(kind, 0), int(count))
        cpus, memory = int(parts[1].rstrip("+")), int(parts[2].rstrip("+"))
        if before is not None:
            cpus, memory = max(cpus, before.cpus), max(memory, before.memory_mib)
        found[name] = PartitionSize(cpus, memory, _minutes(parts[3]), gpus)
    return found


def _minutes(text: str) -> int:
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if match is None:
        return 0
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return max(1, (days * 24 + hours) * 60 + minutes + (1 if seconds else 0))


def map_moss(file: ConfigFile, setting: Setting, site: Site, sizes: Mapping[str, PartitionSize]) -> None:
    """Add a profile for each partition, and an image for each environment."""
    partitions = setting.value
    if isinstance(partitions, Unknown) or not isinstance(partitions, dict):
        reason = partitions.reason if isinstance(partitions, Unknown) else "it is no dict"
        sentence = f"the partitions cannot be read without running the file: {reason}"
        site.say(setting.line, setting.full_name, Level.LOOK, sentence)
        site.notes.append(f"{TODO} (line {setting.line}): write a profile for each partition: {sentence}")
        return
    site.say(setting.line, setting.full_name, *MOSS["partitions"])
    for name, about in partitions.items():
        line = file.values.line_of(partitions, name, setting.line)
        if isinstance(about, dict):
            _map_partition(file, str(name), about, line, site, sizes.get(str(name)))
        else:
            site.say(line, f"partition {name}", Level.LOOK, "it cannot be read without running the file")
            site.notes.append(f"{TODO} (line {line}): write a profile for the partition {name}")


def _map_partition(
    file: ConfigFile, name: str, about: dict[Any, Any], line: int, site: Site, size: PartitionSize | None
) -> None:
    known = {key: value for key, value in about.items() if not isinstance(value, Unknown)}
    comments = [f"line {line}: partition {name}"]
    for key, value in about.items():
        at = file.values.line_of(about, key, line)
        if isinstance(value, Unknown):
            sentence = f"its value cannot be read without running the file: {value.reason}"
            site.say(at, f"{name}.{key}", Level.LOOK, sentence)
            comments.append(f"{TODO}: {key} {sentence}")
        elif key in MOSS and key != "jupyter_environments":
            site.say(at, f"{name}.{key}", *MOSS[key])
        elif key not in MOSS:
            site.say(at, f"{name}.{key}", Level.LOOK, "jupyterhub_moss has no such field")
    data: dict[str, Any] = {
        "display_name": str(known.get("description") or name),
        "slug": name,
        "description": str(known.get("architecture", "")),
        "partition": name,
    }
    missing = []
    cpus = _number(known.get("max_nprocs")) or (size.cpus if size else 0)
    seconds = _number(known.get("max_runtime"))
    minutes = -(-seconds // 60) if seconds else size.minutes if size else 0
    memory = size.memory_mib // 1024 if size else 0
    for what, most in (("cpus", cpus), ("memory_gib", memory), ("time_minutes", minutes)):
        if not most:
            missing.append(what)
        most = most or FALLBACK[what]
        # jupyterhub_moss begins with one CPU and one hour; Slurm gave the memory then.
        default = {"cpus": 1, "memory_gib": min(4, most), "time_minutes": min(60, most)}[what]
        data[what] = limit(most, default, 5 if what == "time_minutes" else 1)
    if missing:
        sentence = (
            f"{', '.join(missing)}: jupyterhub_moss asked Slurm; run `{SINFO} > FILE` and convert with --sinfo=FILE"
        )
        site.say(line, f"partition {name}", Level.LOOK, sentence)
        comments.append(f"{TODO}: {', '.join(missing)} are small numbers of ours; {SINFO} says what nodes have")
    gpus = _gpus(name, known, size, line, site)
    if gpus:
        data["gpus"] = gpus
        if GPU_TYPE_TODO in gpus["types"]:
            comments.append(f"{TODO}: replace {GPU_TYPE_TODO} by the type in gres.conf")
    environments = known.get("jupyter_environments")
    at = file.values.line_of(about, "jupyter_environments", line)
    if isinstance(environments, dict):
        images = [_map_environment(file, environments, key, at, site) for key in environments]
        data["images"] = list(dict.fromkeys(images))
    site.add_profile(data, comments)


def _gpus(
    name: str, known: Mapping[str, Any], size: PartitionSize | None, line: int, site: Site
) -> dict[str, Any] | None:
    template = known.get("gpu")
    most = _number(known.get("max_ngpus"))
    if template == "" or (template is None and "gpu" in known) or known.get("max_ngpus") == 0:
        return None
    match = re.fullmatch(r"(?:gres/)?gpu:(?:([\w.-]+):)?\{\}", str(template or ""))
    types = {match[1]: most or 1} if match and match[1] else {}
    if not types and size:
        types = {kind: min(count, most or count) for kind, count in size.gpus.items()}
    if not types:
        if not template and not most:
            if "cuda" in str(known.get("architecture", "")).lower() and size is None:
                sentence = "it may have GPUs: jupyterhub_moss asked Slurm; --sinfo=FILE says it"
                site.say(line, f"partition {name}", Level.LOOK, sentence)
            return None
        types = {GPU_TYPE_TODO: most or 1}
        sentence = f"GPUs have a type here, as in gres.conf (`sinfo -o '%P %G'`): replace {GPU_TYPE_TODO}"
        site.say(line, f"partition {name}", Level.LOOK, sentence)
    return {"types": types, "min": 0, "default": 0}


def _map_environment(file: ConfigFile, environments: dict[Any, Any], key: object, line: int, site: Site) -> str:
    about, at = environments[key], file.values.line_of(environments, key, line)
    known = about if isinstance(about, dict) else {}
    path, title = str(known.get("path", "")), f"jupyter_environments.{key}"
    description = str(known.get("description", ""))
    if path.endswith(".sif") and (name := site.add_image(path, name=str(key), description=description)):
        site.say(at, title, Level.CHANGED, f"the image {name} of `images`")
        return name
    base = slug(str(key))
    for image in site.images.values():
        if image["name"] == base and image.get("description", "") == description:
            return base  # several partitions have the same environment
    name = site.add_missing_image(base, description)
    parts = [f"modules {known['modules']}".strip()] if known.get("modules") else []
    parts += [f"the environment {path}"] if path else []
    what = " and ".join(parts) or "the same packages"
    sentence = f"make the image {site.images[name]['path']} with {what} (docs/howto/add-an-image.md)"
    site.say(at, title, Level.LOOK, sentence)
    if known.get("prologue"):
        sentence = "no command runs before the server; it belongs in the image"
        site.say(at, f"{title}.prologue", Level.LOOK, sentence)
    return name


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
