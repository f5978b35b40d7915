"""Whether Slurm makes and empties the scratch folders that sessions ask for, and what of it this machine shows.

The programs of nodes are under the same path on all of them, often on a file system that the hub's machine has, too;
what it has not is not held against the site.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from traitlets import TraitError
from traitlets.config import Config

from carme_hub.spawners.staging.programs import MAIN, node_texts
from carme_hub.spawners.staging.settings import CarmeStaging

from . import prolog
from .findings import Finding, advice, unknown, unsafe

_GUIDE = "docs/howto/stage-data.md"
_INSTALL = f"carme-hub staging install /opt/carme-hub/node on the nodes, and the two lines that it prints; {_GUIDE}"
#: Seconds for which an Epilog copies where its settings do not say; what Slurm shows for "no limit".
EPILOG_SECONDS, UNLIMITED = 900, 65534


def check_machine(config: Config) -> Iterator[Finding]:
    """Yield what of the programs that copy is not here, and so perhaps not on compute nodes either."""
    try:
        staging = CarmeStaging(config=config)
    except TraitError as error:
        yield unsafe("CarmeStaging", "", str(error), "correct the setting that the message names")
        return
    if staging.root and staging.rclone.startswith("/") and not os.access(staging.rclone, os.X_OK):
        yield advice(
            "CarmeStaging.rclone",
            staging.rclone,
            "it is not on this machine; nodes without it copy between folders only, and nothing from S3 and the like",
            "look on a compute node; apt-get install rclone there (fuse3, too, for object storage as folders)",
        )


def check(config: Config, slurm: Mapping[str, str]) -> Iterator[Finding]:
    """Yield why sessions would get no scratch folder, or their results would stay in it.

    Args:
        slurm: ``scontrol show config``.
    """
    try:
        staging = CarmeStaging(config=config)
    except TraitError:
        return  # reported already
    if not staging.root:
        return
    user = slurm.get("SlurmdUser", "").partition("(")[0]
    if user not in ("", "root"):
        yield unsafe(
            "SlurmdUser",
            user,
            "Prolog and Epilog are not root's, so they can give no folder to a session's user: none with data starts",
            "SlurmdUser=root in slurm.conf, or c.CarmeStaging.root = ''",
        )
    lacks = {
        "Prolog": "no session with data on its node starts",
        "Epilog": "results stay on their nodes until the next sweep, and where no timer sweeps, for good",
    }
    for name, why in lacks.items():
        yield from _line(name, prolog.scripts(slurm, name), f"nothing calls {MAIN}, so {why}")
    programs = next((each for name in lacks for each in prolog.folders(prolog.scripts(slurm, name), MAIN)), None)
    settings = _settings(programs)
    limit = slurm.get("PrologEpilogTimeout", "").split()
    seconds = int(limit[0]) if limit and limit[0].isdigit() else UNLIMITED
    wanted = int(settings.get("epilog_seconds", EPILOG_SECONDS))
    if 0 < seconds < UNLIMITED and seconds <= wanted:
        yield unsafe(
            "PrologEpilogTimeout",
            seconds,
            f"an Epilog may copy for {wanted} s (epilog_seconds); Slurm ends it before, and takes the node for broken",
            f"PrologEpilogTimeout={wanted + 60} in slurm.conf, or a smaller epilog_seconds on the nodes",
        )
    root = str(settings.get("root", staging.root)).rstrip("/")
    if root != staging.root:
        yield unsafe(
            "CarmeStaging.root",
            staging.root,
            f"{MAIN} makes the folders in {root}, so no session with data finds its own",
            f'c.CarmeStaging.root = "{root}", or the same root in {_settings_file(programs)}',
        )
    yield from _programs(programs)


def _line(name: str, values: list[str], why: str) -> Iterator[Finding]:
    """Yield what is wrong with a line of slurm.conf."""
    found, value = prolog.calls(values, MAIN, f"carme-stage-{name.lower()}"), ", ".join(values)
    if not values:
        yield unsafe(name, "", why, _INSTALL)
    elif not found:
        mend = f"have it call {MAIN} {name.lower()}, as {_GUIDE} says"
        yield (
            unsafe(name, value, why, mend)
            if found is False
            else unknown(name, f"{value} cannot be read here, so whether it calls {MAIN} is not known", mend)
        )


def _settings_file(programs: Path | None) -> Path | None:
    return programs.parent / "etc" / f"{MAIN}.json" if programs is not None else None


def _settings(programs: Path | None) -> Mapping[str, Any]:
    """Return the settings of nodes, {} where they are not here, or are those by default."""
    file = _settings_file(programs)
    try:
        found = json.loads(file.read_text()) if file is not None else {}
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _programs(folder: Path | None) -> Iterator[Finding]:
    """Compare the programs of nodes with those of this release, and see who may write them."""
    if folder is None or not (folder / MAIN).exists():
        return
    others = [path for path in (folder, *folder.iterdir()) if path.stat().st_mode & 0o022 or path.stat().st_uid]
    if others:
        yield unsafe(
            str(others[0]),
            f"mode {others[0].stat().st_mode & 0o777:04o}, user {others[0].stat().st_uid}",
            "others than root can write it, and Slurm runs it as root on every node",
            f"chown -R root {folder}; chmod -R go-w {folder}",
        )
    if old := sorted(name for name, text in node_texts(folder).items() if prolog.text_of(folder / name) != text):
        yield advice(
            str(folder),
            ", ".join(old),
            "these are of another release than the hub",
            f"carme-hub staging install {folder} on the nodes",
        )
