"""An image's description for programs (image.json) and its recipe for people and for years (image.yaml).

The recipe says where the image is from, by digest, what is in it, who added it when and with what, and is enough to add
the same image again (``carme-hub image rebuild``), or to say what it was where its source is gone.
"""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from carme_hub.errors import ContainerError

from .folder import ABOUT, RECIPE
from .source import DIGEST

_HEAD = """\
# How this image was made, and what is in it. `carme-hub image explain` says it in words, and
# `carme-hub image rebuild FILE` adds the same image again from its digest.
"""
#: Labels of an OCI image that say something about its origin (image-spec, annotations).
_LABEL = "org.opencontainers.image."
_MAX_LABELS, _MAX_TEXT = 100, 500


@dataclass(frozen=True, slots=True)
class Recipe:
    """What image.json and image.yaml of an image say besides its name.

    Attributes:
        digest: ``sha256:HEX`` of the source: of the registry's manifest, of the file, or of what the folder contained.
        source: as ``image add`` takes it, without a digest. tag: of a registry. resolved_at: when it stood for it.
        manifest: digest of the manifest in the store's blobs. layers: digests, the lowest first.
        environ: the variables that the image sets, as they are. labels, licences, packages: as far as they are known.
        listing: digest of the listing of its files. size_bytes: of its files. files: entries of the listing.
        policy: the file of the signature policy that it satisfied; "" = signatures were not checked.
        hardened: how often something was changed, by what it was.
        programs: the versions of what added it.
    """

    digest: str
    source: str
    form: str = "dir"
    tag: str = ""
    resolved_at: str = ""
    manifest: str = ""
    architecture: str = ""
    layers: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    licences: Mapping[str, int] = field(default_factory=dict)
    packages: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    listing: str = ""
    size_bytes: int = 0
    files: int = 0
    policy: str = ""
    hardened: Mapping[str, int] = field(default_factory=dict)
    who: str = ""
    when: str = ""
    programs: Mapping[str, str] = field(default_factory=dict)


def write_recipe(image: Path, recipe: Recipe, *, name: str, description: str) -> None:
    """Write the recipe beside an image's tree."""
    said: dict[str, Any] = {"version": 1, "name": name, "description": description, "source": recipe.source}
    said |= {"digest": recipe.digest, "tag": recipe.tag, "resolved": recipe.resolved_at}
    said |= {"format": recipe.form, "architecture": recipe.architecture}
    said |= {"layers": list(recipe.layers), "signature policy": recipe.policy or "none: signatures were not checked"}
    said |= {"added": {"when": recipe.when, "by": recipe.who, "with": dict(recipe.programs)}}
    said |= {"files": {"number": recipe.files, "bytes": recipe.size_bytes, "listing": recipe.listing}}
    said |= {"changed": dict(recipe.hardened), "labels": dict(recipe.labels), "licences": dict(recipe.licences)}
    said |= {"environment": dict(recipe.environ), "packages": {k: dict(v) for k, v in recipe.packages.items()}}
    text = _HEAD + yaml.safe_dump({k: v for k, v in said.items() if v}, sort_keys=False, allow_unicode=True, width=120)
    (image / RECIPE).write_text(text, encoding="utf-8")
    (image / RECIPE).chmod(0o644)


def read_recipe(file: Path) -> dict[str, Any]:
    """Return a recipe, of an image's folder or of a file.

    Raises:
        ContainerError: it is none.
    """
    file = file / RECIPE if file.is_dir() else file
    try:
        value = yaml.safe_load(file.read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise ContainerError(f"{file} cannot be read: {error}") from error
    if not isinstance(value, dict) or value.get("version") != 1 or not DIGEST.fullmatch(str(value.get("digest"))):
        raise ContainerError(f"{file} is not the recipe of an image: it has no version 1 and no digest")
    return value


def about(image: Path) -> dict[str, Any]:
    """Return what an image's image.json says.

    Raises:
        ContainerError: it cannot be read.
    """
    try:
        value = json.loads((image / ABOUT).read_text("utf-8"))
        if not isinstance(value, dict):
            raise ValueError("it is no object")
    except (OSError, ValueError) as error:
        raise ContainerError(f"{image / ABOUT} cannot be read: {error}") from error
    return value


def of_config(content: bytes) -> tuple[dict[str, str], dict[str, str], str]:
    """Return variables, labels and architecture of an image's configuration, as far as they are sensible."""
    try:
        value = json.loads(content)
        config = value.get("config") or {}
        environ = dict(str(each).partition("=")[::2] for each in config.get("Env") or ())
        environ = {name: text for name, text in environ.items() if text.isprintable() and name.isprintable()}
        labels = {_line(name): _line(text) for name, text in (config.get("Labels") or {}).items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}, {}, ""
    first = sorted(labels, key=lambda name: (not name.startswith(_LABEL), name))[:_MAX_LABELS]
    return environ, {name: labels[name] for name in first}, str(value.get("architecture", ""))


def _line(text: object) -> str:
    """Return a foreign text as one line without what a terminal would carry out."""
    return "".join(each if each.isprintable() else " " for each in str(text)[:_MAX_TEXT])


def now_text() -> str:
    """Return the present moment, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def who_adds() -> str:
    """Return who runs this: the user of sudo, or of the process."""
    name = os.environ.get("SUDO_USER", "") if os.getuid() == 0 else ""
    try:
        return name or pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def explain(recipe: Mapping[str, Any]) -> str:
    """Return in words what a recipe says."""
    added, files = recipe.get("added") or {}, recipe.get("files") or {}
    lines = [f"{recipe.get('name')}: {recipe.get('description') or 'without a description'}"]
    lines += [f"It is {recipe['digest']}, from {recipe.get('source')}."]
    if recipe.get("tag"):
        lines += [f"The tag {recipe['tag']} stood for it on {recipe.get('resolved')}."]
    using = ", ".join(f"{name} {version}" for name, version in (added.get("with") or {}).items())
    lines += [f"{added.get('by')} added it on {added.get('when')}, with {using}."]
    lines += [f"Signatures: {recipe.get('signature policy')}."]
    lines += [
        f"It has {files.get('number')} files of {files.get('bytes')} bytes; their listing is {files.get('listing')}."
    ]
    changed = ", ".join(f"{count} {what}" for what, count in (recipe.get("changed") or {}).items())
    lines += [f"Changed to make it safe: {changed or 'nothing'}."]
    if labels := recipe.get("labels"):
        lines += ["Labels:", *(f"  {name}: {text}" for name, text in labels.items())]
    if licences := recipe.get("licences"):
        lines += ["Licences of its packages: " + ", ".join(f"{name} ({count})" for name, count in licences.items())]
    for kind, packages in (recipe.get("packages") or {}).items():
        lines += [f"Packages ({kind}, {len(packages)}): " + ", ".join(f"{n} {v}" for n, v in packages.items())]
    source, digest = str(recipe.get("source")), recipe["digest"]
    if source.startswith("docker://"):
        at = source.removesuffix(f":{recipe['tag']}") if recipe.get("tag") else source
        lines += [f"Again: carme-hub image add NAME {at}@{digest}"]
    return "\n".join(lines)
