"""Another user of this machine, who reads all that they may while something goes on, and looks for canaries in it.

Of processes arguments and environments, of folders all files. Only root can be another user.
"""

from __future__ import annotations

import json
import pwd
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

#: An account of every Debian that runs nothing, and is none of those that copy or unpack.
NAME = "games"
_LOOK = """\
import json, os, select, sys

wanted, folders = (json.loads(sys.stdin.readline()) for _ in range(2))
found, programs, rounds = set(), set(), 0


def read(path):
    try:
        with open(path, "rb") as file:
            return file.read(1 << 22)
    except OSError:
        return b""


def look(path, content):
    found.update(f"{path}: {each}" for each in wanted if each.encode() in content)


print("looking", flush=True)
while True:
    rounds += 1
    for number in filter(str.isdigit, os.listdir("/proc")):
        line = read(f"/proc/{number}/cmdline")
        if b"serve" in line:  # the servers of tests are given their secrets so
            continue
        programs.update(os.path.basename(word).decode("utf-8", "replace") for word in line.split(b"\\0")[:20])
        look(f"/proc/{number}/cmdline", line)
        look(f"/proc/{number}/environ", read(f"/proc/{number}/environ"))
    for top in folders:
        for folder, _, names in os.walk(top):
            for path in (os.path.join(folder, name) for name in names):
                look(path, read(path))
    if select.select([sys.stdin], [], [], 0.002)[0]:
        break
print(json.dumps({"found": sorted(found), "programs": sorted(programs), "rounds": rounds}))
"""


@dataclass
class OtherUser:
    """What they saw. ``found``: where a canary is; ``programs``: names in command lines; ``rounds``: looks."""

    found: list[str] = field(default_factory=list)
    programs: list[str] = field(default_factory=list)
    rounds: int = 0


@contextmanager
def other_user(canaries: Sequence[str], *folders: Path) -> Iterator[OtherUser]:
    """Have another user look until the block ends; what they saw is known afterwards.

    Args:
        canaries: texts that nobody else may read. folders: whose files they try to read.
    """
    entry, seen = pwd.getpwnam(NAME), OtherUser()
    process = subprocess.Popen(
        ["/usr/bin/python3", "-IS", "-c", _LOOK],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        user=entry.pw_uid,
        group=entry.pw_gid,
        extra_groups=[],
        cwd="/",
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(f"{json.dumps(list(canaries))}\n{json.dumps([str(each) for each in folders])}\n")
        process.stdin.flush()
        assert process.stdout.readline() == "looking\n"
        yield seen
        said, problem = process.communicate(timeout=30)
        assert process.returncode == 0, problem
        for name, value in json.loads(said).items():
            setattr(seen, name, value)
    finally:
        process.kill()
        process.communicate()
