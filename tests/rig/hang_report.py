"""What a user's runs and processes do, for the message of a test that waited in vain."""

from __future__ import annotations

import pwd
import shutil
import subprocess
from pathlib import Path

#: Programs whose threads are shown: ranks, their conductor, and the kernel.
_PROGRAMS = ("carme_hub.training", "ipykernel")


def hang_report(user: str) -> str:
    """Return the state and logs of the user's newest run, and the user's processes with their threads."""
    parts = []
    folders = [each for each in (Path(pwd.getpwnam(user).pw_dir) / ".carme/runs").glob("*/") if each.is_dir()]
    if folders:
        newest = max(folders, key=lambda each: each.stat().st_mtime)
        for path in (newest / "state.json", *sorted(newest.glob("*.log"))):
            if path.exists():
                parts.append(f"--- {path}\n{path.read_text(errors='replace')[-4000:]}")
    columns = "pid,ppid,etimes,stat,wchan:24,args"
    parts.append(_output("ps", "--forest", "--user", user, "-ww", "-o", columns, limit=20_000))
    for line in _output("ps", "--user", user, "-ww", "-o", "pid=,args=", limit=100_000).splitlines():
        pid, _, program = line.strip().partition(" ")
        if shutil.which("gdb") and program.startswith("/opt/") and any(each in program for each in _PROGRAMS):
            threads = _output("gdb", "-p", pid, "-batch", "-ex", "thread apply all bt 15", limit=8000)
            parts.append(f"--- {pid} {program[:200]}\n{threads}")
    return "\n".join(parts)


def _output(*argv: str, limit: int) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False, timeout=60)
    return done.stdout[-limit:]
