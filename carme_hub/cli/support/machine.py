"""What a bundle has of the hub's machine: versions, units of systemd, ends of logs."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from carme_hub import __version__
from carme_hub.cli.explain.daemon_thread import in_daemon_thread
from carme_hub.cli.explain.logs import journal, log_file
from carme_hub.domain.support.redaction import REMOVED, Redactor
from carme_hub.domain.support.settings import SHOWN_VARIABLES, environment
from carme_hub.errors import CarmeError
from carme_hub.slurm.command import Commands

from .parts import Part

#: Bytes of the end of each log.
TAIL = 2 << 20
#: Records of each unit's journal.
_RECORDS = 10_000
#: Beginnings of files of gzip (by another name), xz, zstd and bzip2.
_PACKED = (b"\x1f\x8b", b"\xfd7zXZ", b"(\xb5/\xfd", b"BZh")
#: There only where systemd runs (sd_booted(3)).
BOOTED = Path("/run/systemd/system")
#: Programs whose versions are packed, with the argument that prints one.
_PROGRAMS = (
    *(("sinfo", "--version"), ("node", "--version"), ("configurable-http-proxy", "--version")),
    *(("bwrap", "--version"), ("apptainer", "--version"), ("podman", "--version"), ("nginx", "-v")),
)
_PROPERTIES = (
    *("Id", "LoadState", "ActiveState", "SubState", "Result", "ExecMainStatus", "ExecMainStartTimestamp", "NRestarts"),
    *("MemoryCurrent", "CPUUsageNSec", "TasksCurrent", "FragmentPath", "DropInPaths", "User", "StateDirectory"),
)
#: ``Environment="A=b" C=d``: any variable may be secret.
_ENVIRONMENT = re.compile(r"^(\s*(?:Environment|SetCredential\w*|PassEnvironment)\s*=\s*)(.*)$", re.MULTILINE)


def machine_parts(commands: Commands, units: Sequence[str], files: Sequence[str]) -> Iterator[Part]:
    """Yield the parts about the machine; ``files``: logs."""
    yield Part(
        "versions.json", "the Python environment, the system, --version of programs", lambda: _versions(commands)
    )
    for unit in units:
        yield Part(f"systemd/{_plain(unit)}.txt", f"systemctl cat, show {unit}", partial(_unit, commands, unit))
        argv = ["journalctl", f"--unit={unit}", f"--lines={_RECORDS}", "--no-pager", "--output=short-iso"]
        yield Part(f"logs/{_plain(unit)}.journal.txt", " ".join(argv), partial(journal, commands, argv))
    for number, file in enumerate(files):
        name = f"logs/{number or ''}{'-' if number else ''}{_plain(Path(file).name.removesuffix('.gz'))}"
        yield Part(name, f"the last {TAIL >> 20} MiB of {file}", partial(in_daemon_thread, tail, Path(file)))


def tail(file: Path) -> str:
    """Return the end of a log, packed or not, from the beginning of a line.

    Raises:
        OSError, CarmeError: it cannot be read.
    """
    with log_file(file) as opened:
        if opened.read(8).startswith(_PACKED):
            raise CarmeError(f"{file} is packed, so that secrets in it cannot be seen: unpack it, or pack it with gzip")
        opened.seek(0 if file.suffix == ".gz" else max(0, opened.seek(0, os.SEEK_END) - TAIL - 1))
        end = b""
        while part := opened.read(TAIL):
            end = (end + part)[-TAIL - 1 :]
    text = end.decode("utf-8", "replace")
    return text if len(end) <= TAIL else text.partition("\n")[2]


def without_variables(text: str) -> str:
    """Return the text of a unit without the values of variables, apart from harmless ones."""

    def names(found: re.Match[str]) -> str:
        words = re.findall(r"\"([^\"]*)\"|'([^']*)'|(\S+)", found[2])
        shown = []
        for word in (next(filter(None, each), "") for each in words):
            name, equals, _ = word.partition("=")
            shown.append(word if name in SHOWN_VARIABLES or not equals else f"{name}={REMOVED}")
        return found[1] + " ".join(shown)

    return _ENVIRONMENT.sub(names, re.sub(r"\\\n\s*", " ", text))


async def _unit(commands: Commands, unit: str) -> str:
    file = await _run(commands, ("systemctl", "cat", "--no-pager", "--", unit))
    properties = f"--property={','.join(_PROPERTIES)}"
    state = await _run(commands, ("systemctl", "show", "--no-pager", properties, "--", unit))
    return without_variables(f"{state}\n{file}")


async def _versions(commands: Commands) -> dict[str, Any]:
    programs: dict[str, str] = {}
    for name, argument in _PROGRAMS:
        path = commands.path(name) if name == "sinfo" else shutil.which(name)
        try:
            answer = await commands.run([path, argument], timeout=10.0) if path else None
        except CarmeError as error:
            programs[name] = str(error)
            continue
        programs[name] = "not found" if answer is None else (answer.out + answer.err).strip()[:200]
    every = {str(each.metadata["Name"]): each.version for each in metadata.distributions() if each.metadata["Name"]}
    usage = shutil.disk_usage(Path.cwd())
    return {
        "carme-hub": __version__,
        "python": platform.python_version(),
        "system": _os_release() or platform.platform(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "uid": os.geteuid(),
        "free_mib": usage.free >> 20,
        "programs": programs,
        "packages": dict(sorted(every.items(), key=lambda item: item[0].lower())),
        "environment": environment(dict(os.environ), Redactor()),
    }


def _os_release() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""


async def _run(commands: Commands, argv: Sequence[str]) -> str:
    answer = await commands.run(argv, timeout=60.0)
    if answer.code != 0:
        raise CarmeError(answer.message)
    return answer.out


def _plain(name: str) -> str:
    """Return a name that is one part of a path."""
    return re.sub(r"[^\w.@-]", "_", name).lstrip(".") or "log"
