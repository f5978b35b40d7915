"""What an image costs: on its way into the store, on a node's disk, at a start, and in a catalogue of 200.

Runs as ``python benchmarks/images.py [--parts catalogue store nodes starts] [--mib 2300] [--rounds 3] [--starts 40]
[--images 200]``, as root, without Slurm (half an hour; eight minutes with 200 MiB); needs skopeo, umoci and bubblewrap,
and four times as many MiB below ``--folder``. Prints one JSON object a line. The image is the sandbox's full one
(Debian, Python, JupyterLab), with files without meaning of ``--mib`` in all: a quarter of the bytes in files of 20 kB,
the others in files of 64 MiB.

* ``image add`` of an OCI layout, and its step that unpacks, beside ``umoci raw unpack --rootless`` alone;
* fetching to a node's disk (``carme-node-images``) with a cold page cache, beside ``cp -a`` of the same bytes, with
  ``sync``, since ours waits for the disk, too. Goal: 1.3 of that;
* starts of a program in bubblewrap, as sessions start: from the store, from the node's copy, and from a plain folder;
  warm less the same program without a container (goal: 10 ms, Prolog included), and cold;
* page and REST of the images service with 200 images, beside one with a single image. Goal: 200 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from measure import figure, load, log_progress, median, p95

from carme_hub.cli.nodes.install_images import prolog_text
from carme_hub.containers.bubblewrap import Bubblewrap
from carme_hub.containers.images import read_image
from carme_hub.containers.runtime import ContainerRequest
from carme_hub.containers.store.add import add_image
from carme_hub.containers.store.bounds import Bounds
from carme_hub.containers.store.folder import StoreFolder
from carme_hub.containers.store.process import Steps
from carme_hub.containers.store.recipe import about
from carme_hub.containers.store.skopeo import Skopeo
from carme_hub.containers.store.source import parse_source
from carme_hub.containers.store.trust import Trust
from carme_hub.containers.store.unpack import unpack_layers
from carme_hub.node import images as node_images
from carme_hub.sandbox.images.build import build_full_image

# A registry's layouts, and the service without a hub, as the tests have them.
TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "unit/services/images")]

from forged_images import make_image, running  # noqa: E402

NOBODY = 65534
LARGE, SMALL = 64 << 20, 20_000
PROGRAM = Path(node_images.__file__).with_name("store.py")
COPY_GOAL, UNPACK_GOAL, START_GOAL, PAGE_GOAL = 1.3, 1.3, 10.0, 200.0
VIEWS = 30
PARTS = ("catalogue", "store", "nodes", "starts")


def cold() -> None:
    """Drop the page cache where this process may."""
    subprocess.run(["sync"], check=True)
    with suppress(OSError):
        Path("/proc/sys/vm/drop_caches").write_text("3")


def timed(act: Callable[[], object]) -> float:
    """Return the seconds of an act."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def run(*words: str | Path, **more: Any) -> None:
    """Run a program to its end, without its output."""
    subprocess.run([str(word) for word in words], check=True, stdout=subprocess.DEVNULL, **more)


def in_turns(ways: Mapping[str, Callable[[], float]], took: dict[str, list[float]]) -> None:
    """Measure each way once, in random order."""
    for way in random.sample(sorted(ways), len(ways)):
        took.setdefault(way, []).append(ways[way]())


class Bench:
    """One image in a layout, in a store, and on a node."""

    def __init__(self, base: Path, mib: int) -> None:
        self.base, self.store, self.layout = base, base / "store", base / "layout"
        self.store.mkdir(mode=0o755)
        self.home = base / "home"
        self.home.mkdir()
        os.chown(self.home, NOBODY, NOBODY)
        log_progress("making the image")
        tree = base / "tree"
        run("cp", "-a", build_full_image(progress=lambda _: None), tree)
        self._fill(tree / "opt/data", mib << 20)
        run("umoci", "init", "--layout", self.layout)
        run("umoci", "new", "--image", f"{self.layout}:image")
        run("umoci", "insert", "--image", f"{self.layout}:image", tree, "/")
        shutil.rmtree(tree)
        run("chmod", "-R", "a+rX", self.layout)
        self.source = parse_source(f"oci:{self.layout}:image")
        self.number = 0

    def _fill(self, folder: Path, size: int) -> None:
        """Write files without meaning, of so many bytes in all."""
        for number in range(size * 3 // 4 // LARGE):
            (folder / "large").mkdir(parents=True, exist_ok=True)
            (folder / "large" / str(number)).write_bytes(os.urandom(LARGE))
        for number in range(size // 4 // SMALL):
            path = folder / f"{number % 50}" / f"{number}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.urandom(SMALL))

    def new_folder(self, owner: int = 0) -> Path:
        """Return a new folder."""
        self.number += 1
        path = self.base / f"work{self.number}"
        path.mkdir(mode=0o755)
        os.chown(path, owner, owner)
        return path

    # -- into the store -----------------------------------------------------------------------------------------------

    def add(self) -> float:
        """Add the image to a store that has nothing of it."""
        shutil.rmtree(self.store)
        self.store.mkdir(mode=0o755)
        return timed(lambda: add_image(self.source, self.store, "lab"))

    def unpack(self) -> float:
        """Unpack the layers that the store has, as ``image add`` does."""
        work = self.new_folder(NOBODY)
        steps = Steps(work, Bounds())
        assert steps.confines
        manifest = Skopeo(steps, StoreFolder(self.store), Trust(), lambda _: None).read(self.source)
        shutil.rmtree(work / "layout")
        tree = work / "tree"
        tree.mkdir()
        steps.give(tree)
        took = timed(lambda: unpack_layers(StoreFolder(self.store), manifest, tree, steps))
        shutil.rmtree(work)
        return took

    def umoci(self) -> float:
        """Unpack by umoci alone, as the same account."""
        tree = self.new_folder(NOBODY)
        words = ("umoci", "raw", "unpack", "--rootless", "--image", f"{self.layout}:image", tree / "tree")
        took = timed(lambda: run(*words, user=NOBODY, group=NOBODY, extra_groups=[], stderr=subprocess.DEVNULL))
        shutil.rmtree(tree)
        return took

    # -- to a node ----------------------------------------------------------------------------------------------------

    @property
    def image(self) -> Path:
        """The image in the store."""
        return (self.store / "lab").resolve()

    def settings(self, into: Path) -> Path:
        """Return the settings of a node whose copies are there."""
        file = self.base / "node-images.conf"
        file.write_text(f"[images]\nstores = {self.store}\ninto = {into}\nfree_percent = 1\n")
        return file

    def fetch(self, into: Path) -> float:
        """Fetch the image to an empty folder, with a cold cache."""
        file = self.settings(into)
        cold()
        words = ("/usr/bin/python3", "-IS", PROGRAM, "pull", about(self.image)["digest"], "--config", file)
        return timed(lambda: run(*words))

    def fetch_and_remove(self) -> float:
        """Fetch the image, and remove what was fetched."""
        into = self.new_folder()
        took = self.fetch(into)
        shutil.rmtree(into)
        return took

    def copy(self, *, sync: bool) -> float:
        """Copy the image by cp, with a cold cache."""
        into = self.new_folder()
        cold()
        took = timed(lambda: run("cp", "-a", self.image, into / "copy"))
        took += timed(lambda: run("sync", "-f", into)) if sync else 0.0
        shutil.rmtree(into)
        return took

    # -- starts -------------------------------------------------------------------------------------------------------

    def start(self, image: Path, *argv: str) -> float:
        """Start a program in an image, as a session does; return the seconds until it has ended."""
        found = read_image(image)
        request = ContainerRequest(
            found, argv, home=str(self.home), session_folder=f"{self.home}/session", user="nobody"
        )
        plan = Bubblewrap().render(request)
        environ = {"PATH": os.environ["PATH"], **plan.environ}
        return timed(lambda: run(*plan.argv, env=environ, user=NOBODY, group=NOBODY, extra_groups=[], cwd="/"))

    def bare(self, image: Path, *argv: str) -> float:
        """Run a program of an image without a container: one that needs nothing else of it."""
        return timed(lambda: run(f"{image}{argv[0]}", *argv[1:], user=NOBODY, group=NOBODY, extra_groups=[], cwd="/"))

    def prolog(self, into: Path) -> float:
        """Run what Slurm's Prolog runs where the image is there."""
        prolog = self.base / "prolog"
        prolog.write_text(prolog_text(Path("/nonexistent"), str(self.settings(into))))
        environ = {"SLURM_JOB_COMMENT": f"carme-image={about(self.image)['digest']}"}
        return timed(lambda: run("/bin/sh", prolog, env=environ))


def of_store(bench: Bench, rounds: int) -> bool:
    """Measure how an image comes into the store."""
    took: dict[str, list[float]] = {}
    for number in range(rounds):
        in_turns({"add": bench.add, "unpack": bench.unpack, "umoci": bench.umoci}, took)
        log_progress(f"unpacked {number + 1} of {rounds}")
    peer = median(took["umoci"]) or 0.0
    said = about(bench.image)
    more = {"rounds": rounds, "mib": said["size_bytes"] >> 20, "files": said["files"], "load": load()}
    figure("images: image add of a layout, whole", median(took["add"]), "s", peer=peer, **more)
    return figure(
        *("images: its step that unpacks", median(took["unpack"]), "s"), goal=UNPACK_GOAL * peer, peer=peer, **more
    )


def of_nodes(bench: Bench, rounds: int) -> bool:
    """Measure how an image comes to a node's disk."""
    took: dict[str, list[float]] = {}
    ways = {
        "fetch": bench.fetch_and_remove,
        "cp": lambda: bench.copy(sync=False),
        "cp and sync": lambda: bench.copy(sync=True),
    }
    for number in range(rounds):
        in_turns(ways, took)
        log_progress(f"fetched {number + 1} of {rounds}")
    peer = median(took["cp and sync"]) or 0.0
    more = {"rounds": rounds, "mib": about(bench.image)["size_bytes"] >> 20, "files": about(bench.image)["files"]}
    more |= {"cp": median(took["cp"]), "slowest": max(took["fetch"]), "load": load()}
    name = "images: fetch to a node's disk, cold"
    return figure(name, median(took["fetch"]), "s", goal=COPY_GOAL * peer, peer=peer, **more)


def of_starts(bench: Bench, starts: int, rounds: int) -> bool:
    """Measure starts from the store, from a node's copy and from a plain folder."""
    into = bench.new_folder()
    bench.fetch(into)
    copy = into / about(bench.image)["digest"].replace(":", "-")
    plain = bench.new_folder() / "plain"
    run("cp", "-a", copy, plain)
    places = {"store": bench.image, "node": copy, "plain": plain}
    true, lab = ("/usr/bin/true",), ("/opt/venv/bin/jupyter-server", "--version")
    took: dict[str, list[float]] = {}
    ways: dict[str, Callable[[], float]] = {
        name: lambda path=path: bench.start(path, *true)
        for name, path in places.items()  # type: ignore[misc]
    }
    ways |= {"bare": lambda: bench.bare(plain, *true), "prolog": lambda: bench.prolog(into)}
    in_turns(ways, {})  # so that all is in memory
    for _ in range(starts):
        in_turns(ways, took)
    log_progress("started warm")
    bare = median(took["bare"]) or 0.0
    adds = {name: 1000 * ((median(values) or 0.0) - bare) for name, values in took.items()}
    more: dict[str, Any] = {"starts": starts, "bare": 1000 * bare, "load": load()}
    goal: dict[str, Any] = {"goal": START_GOAL, "peer": adds["plain"]}
    holds = figure("images: warm start from the store adds", adds["store"], "ms", **goal, **more)
    prolog = 1000 * (median(took["prolog"]) or 0.0)
    name = "images: warm start from the node's copy adds, with the Prolog"
    holds &= figure(name, adds["node"] + prolog, "ms", **goal, prolog=prolog, **more)

    def chilled(path: Path) -> float:
        cold()
        return bench.start(path, *lab)

    took = {}
    for _ in range(rounds):
        in_turns({name: lambda path=path: chilled(path) for name, path in places.items()}, took)  # type: ignore[misc]
    log_progress("started cold")
    peer = median(took["plain"])
    for name in ("store", "node"):
        figure(f"images: cold start of jupyter-server, {name}", median(took[name]), "s", peer=peer, rounds=rounds)
    return holds


async def views(ask: Callable[[], Any]) -> list[float]:
    """Return how many milliseconds each answer took."""
    took = []
    for _ in range(VIEWS):
        began = time.perf_counter()
        answer = await ask()
        took.append(1000 * (time.perf_counter() - began))
        if answer.code != 200:
            raise SystemExit(f"{answer.code}: {answer.body[:500]!r}")
    return took


async def catalogue(folder: Path, count: int) -> dict[str, list[float]]:
    """Return how long pages and REST took with so many images, by what was asked."""
    folder.mkdir()
    found: dict[str, list[float]] = {}
    packages = {"python": {f"package-{number}": f"1.{number}" for number in range(400)}}
    with pytest.MonkeyPatch.context() as patch:
        async with running(folder, patch, drivers={"a100": "550.54.15"}, node_store="/var/lib/carme-images") as site:
            for number in range(count):
                digest = f"sha256:{number:064x}"
                versions = {"torch": "2.6.0+cu124", "jupyterlab": "4.4.1"}
                more = {"packages": {"python": {**packages["python"], **versions}}, "licences": {"MIT": 120}}
                made = make_image(site.store, f"image-{number:03}", digest, size_bytes=3 << 30, files=90_000, **more)
                for name in ("torch-2.6.0+cu124.dist-info", "jupyterlab-4.4.1.dist-info"):
                    (made / "opt/venv/lib/python3.11/site-packages" / name).mkdir(parents=True)
            found["look"] = [1000 * await seconds(site.service.keeper.look())]
            found["look again"] = [1000 * await seconds(site.service.keeper.look()) for _ in range(5)]
            root = site.visitor("root")
            await root.get("")
            asks: dict[str, Callable[[], Any]] = {
                "page": lambda: root.get(""),
                "search": lambda: root.get("?q=torch+image-00"),
                "one": lambda: root.get("image/image-000"),
                "REST": lambda: site.rest("root", "GET", "images"),
            }
            for name, ask in asks.items():
                found[name] = await views(ask)
    return found


async def seconds(act: Any) -> float:
    began = time.perf_counter()
    await act
    return time.perf_counter() - began


def of_catalogue(base: Path, count: int) -> bool:
    """Measure the service with many images and with one."""
    many, one = (asyncio.run(catalogue(base / f"catalogue{number}", number)) for number in (count, 1))
    holds = True
    more = {"images": count, "load": load()}
    figure("images: first look at the stores", many["look"][0], "ms", peer=one["look"][0], **more)
    figure(
        "images: a later look at the stores", median(many["look again"]), "ms", peer=median(one["look again"]), **more
    )
    words = {"page": "catalogue page", "search": "search", "one": "page of one image", "REST": "REST, 50 images"}
    for name, text in words.items():
        peer = p95(one[name]) if name != "search" else None
        value, middle = p95(many[name]), median(many[name])
        holds &= figure(f"images: {text}, p95", value, "ms", goal=PAGE_GOAL, peer=peer, median=middle, **more)
    return holds


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=2300, help="MiB of files without meaning")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--starts", type=int, default=40)
    parser.add_argument("--images", type=int, default=200, help="in the catalogue")
    parser.add_argument("--folder", type=Path, help="below which is measured; the default is that of temporary files")
    asked: SimpleNamespace = parser.parse_args(arguments, SimpleNamespace())
    with tempfile.TemporaryDirectory(prefix="carme-images-", dir=asked.folder) as folder:
        base = Path(folder).resolve()
        base.chmod(0o755)
        holds = "catalogue" not in asked.parts or of_catalogue(base, asked.images)
        if asked.parts == ["catalogue"]:
            return 0 if holds else 1
        bench = Bench(base, asked.mib)
        if "store" in asked.parts:
            holds &= of_store(bench, asked.rounds)
        else:
            log_progress(f"added in {bench.add():.0f} s")
        holds &= "nodes" not in asked.parts or of_nodes(bench, asked.rounds)
        holds &= "starts" not in asked.parts or of_starts(bench, asked.starts, asked.rounds)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
