"""What shared folders need of the hub's machine: the root-owned program, its settings, sudo's rule, the roots.

The program itself is asked whether folders can be made in each root, as the service calls it.
"""

from __future__ import annotations

import json
import stat
import subprocess
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from traitlets import TraitError
from traitlets.config import Config

from carme_hub.disk.folders import quotas_of
from carme_hub.errors import ConfigError
from carme_hub.folders.scopes import FOLDERS
from carme_hub.folders.settings import CarmeFolders
from carme_hub.paths import share_folder
from carme_hub.service_address import service_address

from .addresses import check_reports, url_of_node_api
from .findings import Finding, advice, unknown, unsafe

COMMAND, ROOTS, QUOTAS = "CarmeFolders.command", "CarmeFolders.roots", "CarmeFolders.disk_quotas"
PROGRAM = "carme-folders"
_GUIDE = "docs/howto/folders.md"
_SECONDS = 30
_HARDLINKS = Path("/proc/sys/fs/protected_hardlinks")


def check_jobs(app: Any, config: Config) -> Iterator[Finding]:
    """Yield why what jobs of folders find would not arrive; ``hub.check`` has the application."""
    try:
        settings = CarmeFolders(config=config)
    except TraitError:
        return  # ``check`` tells it
    if settings.enabled:
        url = service_address(FOLDERS, app.public_url, app.bind_url, url_of_node_api(app))
        yield from check_reports(
            app,
            "CarmeFolders.url",
            settings.url or url,
            own=bool(settings.url),
            what="what it has found in a folder",
            forged="who reads one can forge what a folder has, and whether its checksums hold",
            mend='c.CarmeFolders.url = "https://hub.example.org/services/folders/", an address that nodes reach',
        )


def check(config: Config) -> Iterator[Finding]:
    """Yield what is missing or unsafe where shared folders are on."""
    if not config.CarmeFolders.get("enabled", False):
        return
    try:
        settings = CarmeFolders(config=config)
    except TraitError as error:
        yield unsafe("CarmeFolders", "", str(error), f"write it as {_GUIDE} says")
        return
    command, roots = list(settings.command), dict(settings.roots)
    if not roots:
        yield unsafe(ROOTS, "", "no root is named, so the folders service does not start", f"name one: {_GUIDE}")
    if not command:
        yield unsafe(COMMAND, "", "it is not set, so the folders service does not start", f"set it: {_GUIDE}")
    if not roots or not command:
        return
    program = Path(command[-1])
    found = list(_program(program))
    yield from found
    if found and not program.is_file():
        return
    yield from _settings(program.parents[1] / "etc" / "carme-folders.json", settings)
    for name, path in roots.items():
        yield from _root(command, name, path)
    yield from _links()


def _program(program: Path) -> Iterator[Finding]:
    """Look at the program and at the files beside it, all of which run as root."""
    for file in (program, *(program.with_name(f"{PROGRAM}-{part}") for part in ("acls", "tree"))):
        if not file.is_absolute() or not file.is_file():
            why = "it is not on this machine, so no folder can be made"
            yield unsafe(COMMAND, file, why, f"install it as {_GUIDE} says, or correct the path")
            continue
        for part in (file, *file.parents):
            if why := _changeable(part):
                mend = f"chown root:root {part}; chmod go-w {part}"
                yield unsafe(COMMAND, part, f"{why}, and so what root runs for the hub", mend)
        yield from _other_release(file)


def _changeable(part: Path) -> str:
    """Return why somebody else than root can change a file or what is in a folder, "" = nobody can."""
    status = part.lstat()
    if stat.S_ISLNK(status.st_mode):
        return "it is a link, which leads elsewhere"
    if status.st_uid != 0:
        return "others than root own it and can change it"
    if status.st_mode & 0o022 and not (stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX):
        return "others than root can write it"
    return ""


def _other_release(file: Path) -> Iterator[Finding]:
    try:
        ours = share_folder() / "libexec" / file.name
        same = file.read_bytes() == ours.read_bytes()
    except (OSError, ConfigError):
        return
    if not same:
        mode = 755 if file.name == PROGRAM else 644
        mend = f"install -o root -g root -m {mode} {ours} {file.parent}/"
        yield unsafe(COMMAND, file, "it is of another release than the hub, which may ask what it does not know", mend)


def _settings(file: Path, settings: CarmeFolders) -> Iterator[Finding]:
    """Compare the program's settings with the hub's."""
    roots = dict(settings.roots)
    try:
        document = json.loads(file.read_text())
        known = {str(name): str(path) for name, path in document["roots"].items()}
        numbered = set(document.get("project_ids", {}))
    except FileNotFoundError:
        yield unsafe(ROOTS, file, "the program has no settings, so no folder can be made", f"write them: {_GUIDE}")
        return
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        yield unknown(ROOTS, f"{file} cannot be read: {error}", f"look at it as root, and write it as {_GUIDE} says")
        return
    if why := _changeable(file):
        yield unsafe(
            ROOTS, file, f"{why}, and so where root makes folders", f"chown root:root {file}; chmod 644 {file}"
        )
    if known != dict(roots):
        yield unsafe(
            ROOTS,
            json.dumps(dict(roots)),
            f"{file} has other roots: {json.dumps(known)}; sessions would mount other folders than those that are made",
            "write the same in both, then restart the hub",
        )
    yield from _quotas(file, settings, numbered)


def _quotas(file: Path, settings: CarmeFolders, numbered: Collection[str]) -> Iterator[Finding]:
    """Look at whether quotas can be asked for folders."""
    try:
        quotas = quotas_of(settings)
    except ConfigError as error:
        why = f"the folders service does not start: {error}"
        yield unsafe(QUOTAS, json.dumps(settings.disk_quotas), why, f"write it as {_GUIDE} says")
        return
    for root, quota in quotas.items():
        if quota.needs_project and root not in numbered:
            why = f"{file} has no project_ids for {root}, so new folders have none, and no quota counts them"
            mend = f'add "project_ids": {{"{root}": 500000}} there, with a first number that nobody else uses'
            yield unsafe(QUOTAS, root, why, mend)


def _root(command: Sequence[str], name: str, path: str) -> Iterator[Finding]:
    """Have the program say whether folders can be made in a root."""
    words = [*command, "check", name]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=_SECONDS, stdin=subprocess.DEVNULL, cwd="/", check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        yield unknown(ROOTS, f"{path}: {' '.join(words)} gave no answer: {error}", "run it as the hub's user")
        return
    if done.returncode == 0:
        return
    try:
        said = str(json.loads(done.stderr)["error"])
    except (ValueError, KeyError, TypeError):
        said = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        if command[0].endswith("sudo"):
            mend = f"as root: visudo -f /etc/sudoers.d/carme-hub-folders; HUBUSER ALL=(root) NOPASSWD: {command[-1]}"
            yield unsafe(COMMAND, " ".join(words), f"sudo does not let this user run it: {said}", mend)
            return
    yield unsafe(ROOTS, f"{name}: {path}", f"no folder can be made there: {said}", f"see {_GUIDE}")


def _links() -> Iterator[Finding]:
    """Look at whether people can make second names for files that they may not write."""
    try:
        value = _HARDLINKS.read_text().strip()
    except OSError:
        return
    if value != "1":
        why = "readers of a folder can keep its files under second names elsewhere after their access has ended"
        yield advice("fs.protected_hardlinks", value, why, "sysctl -w fs.protected_hardlinks=1, on all nodes")
