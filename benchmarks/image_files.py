"""An image of a million small files: into the store, checked there, and to a node's disk; time and memory of each.

Runs as ``python benchmarks/image_files.py [--files 1000000] [--folder F]``, as root, without Slurm (ten minutes);
needs skopeo, umoci and bubblewrap, 20 GB and three million inodes below ``--folder``. Prints one JSON object a line.
The image is one layer of an OCI layout: files of 100 bytes, a thousand in a folder. Each command is a process of its
own; its memory is the most that it or a program below it had at a time.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

from measure import figure, load, log_progress

from carme_hub.containers.store.recipe import about
from carme_hub.node import images as node_images

IN_FOLDER, BYTES = 1000, 100
PROGRAM = Path(node_images.__file__).with_name("store.py")


def layer(path: Path, files: int) -> None:
    """Write a layer of a system with so many files."""
    with tarfile.open(path, "w") as tar:
        for name in ("usr", "usr/bin", "data"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(folder)
        for number in range(files):
            if number % IN_FOLDER == 0:
                folder = tarfile.TarInfo(f"data/{number // IN_FOLDER}")
                folder.type, folder.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(folder)
            one = tarfile.TarInfo(f"data/{number // IN_FOLDER}/{number}")
            one.size = BYTES
            tar.addfile(one, io.BytesIO(f"{number:0{BYTES}}".encode()))


def layout(base: Path, files: int) -> str:
    """Return an OCI layout with that layer, as ``image add`` takes it."""
    place, tar = base / "layout", base / "layer.tar"
    layer(tar, files)
    for words in (("init", "--layout", place), ("new", "--image", f"{place}:image")):
        subprocess.run(["umoci", *map(str, words)], check=True)
    subprocess.run(["umoci", "raw", "add-layer", "--image", f"{place}:image", str(tar)], check=True)
    tar.unlink()
    subprocess.run(["chmod", "-R", "a+rX", str(place)], check=True)
    return f"oci:{place}:image"


def measured(*words: str | Path) -> tuple[float, float]:
    """Run a command; return its seconds and the most MiB of memory that it, or one below it, had."""
    began = time.perf_counter()
    process = subprocess.Popen([str(word) for word in words], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, words
    return time.perf_counter() - began, used.ru_maxrss / 1024


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="below which is measured; the default is that of temporary files")
    asked: SimpleNamespace = parser.parse_args(arguments, SimpleNamespace())
    with tempfile.TemporaryDirectory(prefix="carme-images-", dir=asked.folder) as folder:
        base = Path(folder).resolve()
        base.chmod(0o755)
        log_progress("making the image")
        source = layout(base, asked.files)
        (base / "store").mkdir(mode=0o755)
        hub = (sys.executable, "-m", "carme_hub.cli", "image")
        store = f"--store={base}/store"
        config = base / "node-images.conf"
        config.write_text(f"[images]\nstores = {base}/store\ninto = {base}/node\nfree_percent = 1\n")
        acts = {
            "image add of a layout, whole": (*hub, "add", "many", source, store),
            "image check": (*hub, "check", "many", store),
        }
        for name, words in acts.items():
            log_progress(name)
            took, most = measured(*words)
            figure(f"image files: {name}", took, "s", mib=round(most), files=asked.files, load=load())
        log_progress("fetch to a node's disk")
        digest = about((base / "store/many").resolve())["digest"]
        took, most = measured("/usr/bin/python3", "-IS", PROGRAM, "pull", digest, "--config", config)
        figure("image files: fetch to a node's disk", took, "s", mib=round(most), files=asked.files, load=load())
        log_progress("removing all of it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
