"""Whatever kills the end of a session, at every one of its steps: nothing is lost, nothing half there, nothing stays.

Real processes, killed by SIGKILL at each change of the file system and in the middle of each write (``rig.strike``).
The oracle compares checksums after each kill, and again when the node has gone on with it.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from rig.nightly import NIGHTLY
from rig.staging import StagedNode, sums

#: The output of the session: two files, one of them in a folder, and one that replaces an older one at the target.
FILES = {"run/model.pt": os.urandom(3 << 20), "run/logs/a.txt": b"log\n" * 500, "run/old.bin": b"new" * 4000}
OLD = b"old" * 3000
#: Where a node of a run brings them, below the target of all nodes; "" for a session.
BELOW = {"root": "", "user": "", "run": "run-7/node1-7"}


@pytest.fixture
def base() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="carme-stage-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder).resolve()


def session_with_output(base: Path, number: int, below: str = "") -> StagedNode:
    (base / str(number)).mkdir()
    node = StagedNode(base / str(number))
    node.begin(out=[{"source": "run", "target": f"{node.target}/run"}], below=below)
    for name, content in FILES.items():
        node.write(node.data / name, content)
    os.chown(node.data / "run" / "logs", node.uid, node.gid)
    node.write(node.data / "rest.tmp", b"not named")
    old = node.target / "run" / below / "old.bin"
    node.write(old, OLD)
    os.utime(old, (1, 1))
    return node


def at_target(node: StagedNode) -> dict[str, str]:
    """Return the checksums at the target by the names that the files have in scratch."""
    found = sums(node.target)
    below = next((each for each in BELOW.values() if each and (node.target / "run" / each).exists()), "")
    return {name.replace(f"run/{below}/", "run/", 1) if below else name: digest for name, digest in found.items()}


def wanted(node: StagedNode) -> dict[str, str]:
    return {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}


def nothing_half_written(node: StagedNode) -> bool:
    """Return whether each file at the target is whole: as it is to be, or as it was."""
    old = {"run/old.bin": hashlib.sha256(OLD).hexdigest()}
    return all(digest in (wanted(node)[name], old.get(name)) for name, digest in at_target(node).items())


def nothing_lost(node: StagedNode) -> bool:
    """Return whether each file is whole at its target, or still in scratch."""
    there, here = at_target(node), sums(node.data) if node.data.exists() else {}
    return all(digest in (there.get(name), here.get(name)) for name, digest in wanted(node).items())


@pytest.mark.parametrize("who", list(BELOW))
def test_killed_at_every_step_of_the_epilog_it_is_finished_by_the_next_sweep(base: Path, who: str) -> None:
    step, killed = 0, 0
    while True:
        step += 1 if NIGHTLY else 3
        node = session_with_output(base, step, BELOW[who])
        done = node.run("epilog", strike=f"{'user' if BELOW[who] else who}:{step}")
        whole = node.nothing_left()
        assert nothing_half_written(node), (who, step, done.stderr)
        assert nothing_lost(node), (who, step, done.stderr)
        node.reboot()
        again = node.run("sweep")
        assert at_target(node) == wanted(node), (who, step, again.stderr)
        assert node.nothing_left(), (who, step, again.stderr)
        assert not list(node.target.rglob(".carme-*")), (who, step)
        if whole and done.returncode == 0:
            break
        killed += 1
    assert killed > (8 if NIGHTLY else 2)  # what it began with was killed; the last one had fewer steps than that


def test_killed_at_every_step_of_the_prolog_it_is_made_anew_or_leaves_nothing(base: Path) -> None:
    step = 0
    while True:
        step += 1
        (base / str(step)).mkdir()
        node = StagedNode(base / str(step))
        done = node.run("prolog", strike=f"root:{step}")
        if step % 2:  # requeued, here again
            node.begin(out=[{"source": "run", "target": f"{node.target}/run"}])
            node.write(node.data / "run", b"1")
        node.run("epilog")
        node.reboot()
        swept = node.run("sweep")
        if (node.base / "state").exists():
            assert node.nothing_left(), (step, swept.stderr)
        assert len(sums(node.target)) == step % 2, (step, swept.stderr)
        if done.returncode == 0:
            break
    assert step > 5
