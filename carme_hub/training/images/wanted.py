"""What is to be built: a Containerfile, the packages of a file, of a folder with one of them, or of this session."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from carme_hub.training.run.failures import CannotRun

#: Files that a folder is searched for, the first one counts, with what each of them is.
FILES = (
    ("Containerfile", "containerfile"),
    ("Dockerfile", "containerfile"),
    ("requirements.txt", "requirements"),
    ("environment.yml", "environment"),
    ("environment.yaml", "environment"),
)
_MOST_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Wanted:
    """An image: ``kind`` is requirements, environment, packages or containerfile; ``name`` a name for it.

    ``context``: the folder with the files of a Containerfile.
    """

    kind: str
    text: str
    name: str
    context: str = ""


def of_path(path: Path) -> Wanted:
    """Return what a file or a folder asks for.

    Raises:
        CannotRun: it has nothing that can be built.
    """
    path = path.expanduser()
    if path.is_dir():
        found = next(((path / name, kind) for name, kind in FILES if (path / name).is_file()), None)
        if found is None:
            names = ", ".join(name for name, _ in FILES[:-1])
            raise CannotRun(f"{path} has none of {names}. --installed takes this session's.")
        return _wanted(found[0], found[1], path.resolve().name)
    kind = "environment" if path.suffix in (".yml", ".yaml") else "requirements"
    if any(each in path.name.lower() for each in ("containerfile", "dockerfile")):
        kind = "containerfile"
    usual = kind == "containerfile" or path.stem in ("requirements", "environment")
    return _wanted(path, kind, path.resolve().parent.name if usual else path.stem)


def _wanted(file: Path, kind: str, name: str) -> Wanted:
    context = str(file.resolve().parent) if kind == "containerfile" else ""
    return Wanted(kind, _text(file), _name(name), context)


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise CannotRun(f"{path} cannot be read: {error}") from error
    if len(text) > _MOST_BYTES:
        raise CannotRun(f"{path} is too large for a list of packages.")
    return text


def _name(text: str) -> str:
    plain = "".join(each if each.isascii() and each.isalnum() else "-" for each in text.lower())
    return plain.strip("-")[:40].strip("-") or "packages"


def of_session(environ: Mapping[str, str] = os.environ) -> Wanted:
    """Return what pip has installed in this session, each package in its version.

    Raises:
        CannotRun: there is nothing, this is no session, or a package is of a folder.
    """
    folder = environ.get("CARME_PACKAGES", "")
    if not folder:
        raise CannotRun("--installed takes what pip has installed in a session, and this is none.")
    place = f"{folder}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    lines = sorted(_lines(place), key=str.lower)
    if not lines:
        raise CannotRun("pip has installed nothing in this session. Install what you need, try it, and build it then.")
    return Wanted("packages", "\n".join(lines) + "\n", "packages")


def _lines(place: str) -> Iterator[str]:
    for each in importlib.metadata.distributions(path=[place]):
        name, text = each.metadata["Name"], each.read_text("direct_url.json")
        if not name:
            continue
        if text is None:
            yield f"{name}=={each.version}"
            continue
        said = json.loads(text)
        url, vcs = str(said.get("url", "")), said.get("vcs_info")
        if isinstance(vcs, dict):
            yield f"{name} @ {vcs['vcs']}+{url}@{vcs['commit_id']}"
        elif url.startswith(("https://", "http://")):
            yield f"{name} @ {url}"
        else:
            raise CannotRun(
                f"{name} was installed from {url.removeprefix('file://')}, which the build does not have. Install it "
                "from its repository, or leave it out by a requirements.txt."
            )
