"""The checks of ``carme-hub upgrade --check``. Each yields what an upgrade means for one part of a site."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from traitlets import HasTraits
from traitlets.config import Config

from carme_hub import __version__
from carme_hub.errors import CarmeError, StoreError
from carme_hub.folders.settings import CarmeFolders
from carme_hub.paths import share_folder
from carme_hub.slurm.settings import CarmeSlurm
from carme_hub.spawners.job_script import DATA_VERSION
from carme_hub.store.engine import CarmeStore
from carme_hub.store.upgrade_steps import Schema, open_sessions, schema

from .releases import GONE, TESTED_SLURM, Release, earlier_releases, release_of_schema

#: Classes of ours whose settings are not those of ``settings``: of an extra, of the proxy, and the services' programs.
_OTHER_CLASSES = {"CarmeDockerSpawner", "CarmeProxy", "CarmeService"}


class Need(Enum):
    """What a finding asks of the administrator."""

    ACT = "do"
    UNKNOWN = "unknown"
    NOTE = "note"
    FINE = "fine"


@dataclass(frozen=True, slots=True)
class Finding:
    """What changes for one part. ``do``: the command or line, "" where there is nothing to do."""

    part: str
    need: Need
    text: str
    do: str = ""

    def line(self) -> str:
        """Return the finding for people."""
        return f"{self.need.value:8}{self.part}: {self.text}" + (f"\n        do: {self.do}" if self.do else "")

    def json(self) -> dict[str, str]:
        """Return the finding for programs."""
        return {"part": self.part, "need": self.need.name.lower(), "text": self.text, "do": self.do}


def settings(config: Config, classes: Mapping[str, type[HasTraits]], before: Release | None) -> Iterator[Finding]:
    """Yield settings of the file that this release does not know, and those that it adds."""
    unknown = 0
    for section in sorted(name for name in config if name.startswith("Carme") and config[name]):
        if section in classes or section in _OTHER_CLASSES:
            continue
        unknown += 1
        close = difflib.get_close_matches(section, classes, 1)
        hint = f"rename it to c.{close[0]}, if that is meant" if close else f"remove c.{section}"
        yield Finding("settings", Need.ACT, f"c.{section} does not exist in this release, and the hub ignores it", hint)
    for section, cls in classes.items():
        known = sorted(cls.class_trait_names(config=True))
        for name in sorted(set(config[section]) - set(known) if section in config else ()):
            unknown += 1
            close = difflib.get_close_matches(name, known, 1)
            hint = f"rename it to {section}.{close[0]}, if that is meant" if close else f"remove c.{section}.{name}"
            text = f"c.{section}.{name} does not exist in this release, and the hub ignores it"
            yield Finding("settings", Need.ACT, text, GONE.get((section, name), hint))
    if not unknown:
        yield Finding("settings", Need.FINE, "every setting of the file exists in this release")
    for section, cls in classes.items() if before is not None else ():
        ours = {name for name, trait in cls.class_traits(config=True).items() if _is_ours(trait)}
        new = sorted(ours - set(before.settings.get(section, ()))) if before is not None else []
        if new:
            yield Finding("settings", Need.NOTE, f"new since {before.release}: {section}.{', .'.join(new)}")  # type: ignore[union-attr]


def _is_ours(trait: Any) -> bool:
    return str(getattr(trait.this_class, "__module__", "")).startswith("carme_hub")


def databases(config: Config, hub: Any) -> Iterator[Finding]:
    """Yield the steps that an upgrade would run, in both databases."""
    store = CarmeStore(config=config)
    automatic = "the hub does it at its start" if store.upgrade else "carme-hub db upgrade, with the hub stopped"
    yield from _database("database", lambda: schema(store.url), automatic)
    from jupyterhub import dbutil  # here: importing JupyterHub takes a second

    theirs = Path(dbutil.ALEMBIC_DIR)
    how = "the hub does it at its start" if hub.upgrade_db else "jupyterhub upgrade-db, with the hub stopped"
    yield from _database("JupyterHub's database", lambda: schema(hub.db_url, theirs, "alembic_version"), how)


def _database(part: str, read: Any, do: str) -> Iterator[Finding]:
    try:
        found: Schema = read()
    except StoreError as error:
        yield Finding(part, Need.UNKNOWN, str(error))
        return
    if not found.known:
        text = f"it has schema {found.have}, of a later release; this one needs {found.want}"
        yield Finding(part, Need.ACT, text, "restore the copy from before that upgrade, or install the later release")
    elif not found.have:
        yield Finding(part, Need.FINE, "there is none yet; the hub creates it")
    elif not found.steps:
        yield Finding(part, Need.FINE, f"it has the schema of this release ({found.want}), so the way back is open")
    else:
        steps = "; ".join(f"{revision}: {purpose}" if purpose else revision for revision, purpose in found.steps)
        text = f"from {found.have} to {found.want} in {len(found.steps)} steps ({steps}); the way back is a copy"
        yield Finding(part, Need.ACT, text, f"back it up (carme-hub db backup); {do}")


def helpers(config: Config) -> Iterator[Finding]:
    """Yield the installed helpers that are not those of this release."""
    slurm: Any = CarmeSlurm(config=config)
    commands = (slurm.submit_command, slurm.jobs_command, slurm.token_command, slurm.tail_command)
    paths = {Path(word) for command in commands for word in command if word.startswith("/")}
    for word in CarmeFolders(config=config).command:
        if word.startswith("/"):
            paths |= {Path(word), Path(f"{word}-tree")}
    for path in sorted(paths):
        ours = share_folder() / "libexec" / path.name
        if not ours.is_file():
            continue  # the site's own program
        try:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            yield Finding("helpers", Need.UNKNOWN, f"{path} cannot be read: {error.strerror}", "run this as root")
            continue
        if digest == hashlib.sha256(ours.read_bytes()).hexdigest():
            yield Finding("helpers", Need.FINE, f"{path} is that of this release")
            continue
        of = [each.release for each in earlier_releases() if each.helpers.get(path.name) == digest]
        text = f"{path} is that of {of[-1] if of else 'another release, or was changed'}"
        yield Finding("helpers", Need.ACT, text, f"install -o root -g root -m 755 {ours} {path.parent}/")


def sessions(config: Config) -> Iterator[Finding]:
    """Yield with which programs the sessions run that an upgrade would find."""
    url = CarmeStore(config=config).url
    try:
        count, database = open_sessions(url), schema(url)
    except StoreError as error:
        yield Finding("sessions", Need.UNKNOWN, str(error))
        return
    before, earlier = release_of_schema(database.have), earlier_releases()
    if count and database.steps and (before is None or before.data_version != DATA_VERSION):
        if before is None:
            known = ", ".join(each.release for each in earlier)
            text = f"{count} run, of a release before those whose sessions were tested with this one ({known})"
        else:
            text = f"{count} run, with data document {before.data_version}, and this release speaks {DATA_VERSION}"
        yield Finding("sessions", Need.ACT, text, "upgrade when they have ended")
        return
    spoken = [each.release for each in earlier if each.data_version == DATA_VERSION]
    releases = ", ".join([*spoken, __version__])
    text = (
        f"{count} run, each with the programs of the release that started it (data document {DATA_VERSION}: {releases})"
    )
    yield Finding("sessions", Need.FINE, f"{text}; they continue, and speak with this release")


async def slurm(config: Config) -> Iterator[Finding]:
    """Yield whether this release was tested with the site's Slurm."""
    try:
        answer = await CarmeSlurm(config=config).commands().query("scontrol", "--version")
    except CarmeError as error:
        return iter([Finding("Slurm", Need.UNKNOWN, str(error))])
    match = re.search(r"(\d+)\.(\d+)", answer.out)
    if match is None:
        return iter([Finding("Slurm", Need.UNKNOWN, f"scontrol --version says: {answer.message}")])
    release, tested = (int(match[1]), int(match[2])), ", ".join(f"{year}.{month:02}" for year, month in TESTED_SLURM)
    name = f"{release[0]}.{release[1]:02}"
    if release < TESTED_SLURM[0]:
        return iter(
            [Finding("Slurm", Need.ACT, f"{name} is older than what is tested ({tested})", "upgrade Slurm first")]
        )
    if release in TESTED_SLURM:
        return iter([Finding("Slurm", Need.FINE, f"{name} is tested with this release")])
    return iter([Finding("Slurm", Need.NOTE, f"{name} is not among the releases of the tests ({tested})")])
