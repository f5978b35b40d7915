"""The register of the processes that a sandbox starts: it identifies each one, and ends only those.

A pid alone proves nothing, because the kernel reuses pids. A pid together with its start time (in clock ticks since
boot) and the id of the boot identifies one process for ever, so these are recorded, and compared before any signal
is sent.
"""

from __future__ import annotations

import contextlib
import grp
import json
import os
import pwd
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from carme_hub.errors import SandboxError

State = Literal["running", "crashed", "not started"]


@dataclass(frozen=True, slots=True)
class Record:
    """One process that was started: its identity, and its command line."""

    name: str
    pid: int
    ticks: int
    boot: str
    argv: tuple[str, ...]
    user: str
    since: float
    group: bool = False


def boot_id() -> str:
    """Return the id of the running boot of this machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def stat_of(pid: int) -> tuple[str, int, int] | None:
    """Return state letter, parent and start time in ticks of a process, or None where there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold blanks and parentheses
    return fields[0], int(fields[1]), int(fields[19])


def is_alive(pid: int, ticks: int) -> bool:
    """Return whether the process with that start time runs; a zombie does not."""
    found = stat_of(pid)
    if found is None or found[2] != ticks:
        return False
    if found[0] in "ZX":
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)  # has an effect only for a child of this process
        return False
    return True


def identity(user: str | None, extra_groups: Sequence[str] = ()) -> dict[str, object]:
    """Return the arguments of ``Popen`` that make a process run as the user, with that user's groups."""
    if user is None:
        return {}
    if os.geteuid() != 0:
        if pwd.getpwuid(os.geteuid()).pw_name != user:
            raise SandboxError(f"Only root can start a process as {user}")
        return {}
    entry = pwd.getpwnam(user)
    groups = {*os.getgrouplist(user, entry.pw_gid), *(grp.getgrnam(g).gr_gid for g in extra_groups)}
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": sorted(groups)}


class Processes:
    """The register of started processes: one small file for each, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(
        self,
        name: str,
        argv: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        extra_groups: Sequence[str] = (),
        cwd: Path | str = "/",
        umask: int = 0o022,
        group: bool = False,
    ) -> int:
        """Start a process that outlives this one, and record it.

        Args:
            log: the file for its output; truncated at every start.
            user: name of the user it runs as, with that user's groups and the extra ones.
            group: whether ``stop`` ends its whole process group.

        Returns:
            its pid.
        """
        if self.alive(name):
            raise SandboxError(f"{name} runs already")
        self.folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with os.fdopen(os.open(log, flags, 0o640), "wb") as output:
            process = subprocess.Popen(
                list(argv),
                env=dict(env or {}),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=umask,
                **identity(user, extra_groups),  # type: ignore[call-overload]
            )
        process.returncode = 0  # it must outlive this process, which does not wait for it
        found = stat_of(process.pid)
        record = Record(
            name=name,
            pid=process.pid,
            ticks=found[2] if found else 0,
            boot=boot_id(),
            argv=tuple(argv),
            user=user or pwd.getpwuid(os.geteuid()).pw_name,
            since=time.time(),
            group=group,
        )
        new = self.folder / f".{name}.new"
        new.write_text(json.dumps(asdict(record)))
        new.rename(self._file(name))
        return process.pid

    def record(self, name: str) -> Record | None:
        """Return the record of the process, or None where none was started."""
        try:
            document = json.loads(self._file(name).read_text())
        except FileNotFoundError:
            return None
        return Record(**{**document, "argv": tuple(document["argv"])})

    def names(self) -> list[str]:
        """Return the names of all processes that were started and not stopped, in the order of their start."""
        if not self.folder.is_dir():
            return []
        records = (self.record(f.stem) for f in self.folder.glob("[!.]*.json"))
        return [r.name for r in sorted((r for r in records if r), key=lambda r: r.since)]

    def alive(self, name: str) -> bool:
        """Return whether the process that was started under this name runs."""
        record = self.record(name)
        return record is not None and record.boot == boot_id() and is_alive(record.pid, record.ticks)

    def state(self, name: str) -> State:
        """Return the state of the process."""
        if self.record(name) is None:
            return "not started"
        return "running" if self.alive(name) else "crashed"

    def signal(self, name: str, number: int) -> None:
        """Send a signal to the process; raise ``SandboxError`` where it does not run."""
        record = self.record(name)
        if record is None or not self.alive(name):
            raise SandboxError(f"{name} does not run")
        os.kill(record.pid, number)

    def stop(self, name: str, *, within: float = 10.0) -> str:
        """End the process with TERM, then with KILL; remove its record, and return what happened."""
        record = self.record(name)
        if record is None:
            return "was not started"
        outcome = "was gone"
        if self.alive(name):
            outcome = "ended"
            os.kill(record.pid, signal.SIGTERM)
            with contextlib.suppress(ProcessLookupError):
                os.kill(record.pid, signal.SIGCONT)  # a frozen process takes no TERM
            if not self._wait(record, within):
                os.kill(record.pid, signal.SIGKILL)
                outcome = "killed"
                self._wait(record, 5.0)
        if record.group and record.boot == boot_id():
            self._end_group(record)
        self._file(name).unlink(missing_ok=True)
        return outcome

    def _end_group(self, record: Record) -> None:
        """Kill the rest of a session that we created; the kernel does not reuse a session id while it has members."""
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[3]) == record.pid and int(fields[19]) >= record.ticks and fields[0] not in "ZX":
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(entry.name), signal.SIGKILL)

    def _wait(self, record: Record, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while is_alive(record.pid, record.ticks):
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True

    def _file(self, name: str) -> Path:
        if not name or "/" in name or name.startswith("."):
            raise SandboxError(f"{name!r} cannot be the name of a process")
        return self.folder / f"{name}.json"
