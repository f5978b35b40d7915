"""Images on a node's disk: fetched by digest, whole or not at all, within bounds; removed where nothing uses them."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from carme_hub.cli.nodes.install_images import prolog_text
from carme_hub.containers.store.bounds import Bounds
from carme_hub.node.images.store import SETTINGS

PROGRAM = Path(__file__).parents[3] / "carme_hub" / "node" / "images" / "store.py"
DIGEST, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64
OWN = {"image.json", "image.yaml", "image.files.gz"}


def entries(tree: Path, below: str = "") -> list[list[Any]]:
    """Return the listing of a tree as the store writes it, by an own way: the entries of a folder, then its folders."""
    found: list[list[Any]] = []
    folders = []
    for path in sorted((tree / below).iterdir(), key=lambda each: each.name):
        name = f"{below}/{path.name}" if below else path.name
        if name in OWN:
            continue
        state = path.lstat()
        mode = stat.S_IMODE(state.st_mode)
        if path.is_symlink():
            found.append([name, "l", str(path.readlink())])
        elif path.is_dir():
            found.append([name, "d", mode])
            folders.append(name)
        else:
            found.append([name, "f", mode, state.st_size, hashlib.sha256(path.read_bytes()).hexdigest()])
    for name in folders:
        found += entries(tree, name)
    return found


def digest_of(found: list[list[Any]]) -> str:
    text = b"".join(json.dumps(entry, separators=(",", ":")).encode() + b"\n" for entry in found)
    return f"sha256:{hashlib.sha256(text).hexdigest()}"


class Node:
    """A node with a store beside it."""

    def __init__(self, folder: Path) -> None:
        self.store, self.into, self.folder = folder / "store", folder / "local", folder
        self.store.mkdir()
        self.settings: dict[str, str] = {}
        self.service: dict[str, str] = {}

    def image(self, name: str = "torch", digest: str = DIGEST, **files: bytes) -> Path:
        """Put an image into the store."""
        image = self.store / name
        (image / "usr/lib/empty").mkdir(parents=True)
        (image / "usr/lib/big").write_bytes(os.urandom(3 << 20))
        (image / "usr/lib/mod.pyc").write_bytes(b"pyc")
        os.utime(image / "usr/lib/mod.pyc", (1_600_000_000, 1_600_000_000))
        (image / "usr/lib/tool").write_bytes(b"#!/bin/sh\n")
        (image / "usr/lib/tool").chmod(0o755)
        (image / "bin").symlink_to("usr/bin")
        (image / "usr/naïve\nname").write_bytes(b"x")
        for path, content in files.items():
            (image / path).write_bytes(content)
        self.describe(image, digest)
        return image

    def describe(self, image: Path, digest: str, **more: Any) -> None:
        found = entries(image)
        size = sum(each[3] for each in found if each[1] == "f")
        about = {"digest": digest, "format": "dir", "listing": digest_of(found), "size_bytes": size, **more}
        (image / "image.json").write_text(json.dumps(about))
        (image / "image.files.gz").write_bytes(b"listing")

    def run(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        config = self.folder / "node-images.conf"
        images = {"stores": str(self.store), "into": str(self.into), "free_percent": "0", **self.settings}
        parts = {"images": images, "service": self.service}
        lines = [line for name, of in parts.items() for line in (f"[{name}]", *(f"{k} = {v}" for k, v in of.items()))]
        config.write_text("\n".join(lines))
        argv = [sys.executable, "-I", str(PROGRAM), *words, "--config", str(config), "--node", "n1"]
        env = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", **environ}
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, env=env)

    def place(self, digest: str = DIGEST) -> Path:
        return self.into / digest.replace(":", "-")

    def remember(self, digest: str, **values: float) -> None:
        """Change what the node knows of an image."""
        state = self.into / ".state" / f"{digest.replace(':', '-')}.json"
        state.write_text(json.dumps({**json.loads(state.read_text()), **values}))

    def squeue(self, script: str) -> str:
        """Return a squeue that answers by a shell script."""
        path = self.folder / "squeue"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    def leftovers(self) -> list[str]:
        return [path.name for path in self.into.glob(".new-*")] + [path.name for path in self.into.glob(".old-*")]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_an_image_is_fetched_whole_with_modes_times_and_links(node: Node) -> None:
    image = node.image()
    done = node.run("pull", DIGEST)
    assert (done.returncode, done.stdout) == (0, "fetched\n"), done.stderr
    copy = node.place()
    assert entries(copy) == entries(image)
    assert (copy / "usr/lib/mod.pyc").stat().st_mtime == 1_600_000_000, "Python compares it with that in the file"
    assert (copy / "image.json").exists()
    assert copy.stat().st_mode & 0o777 == 0o755
    assert not node.leftovers()
    assert node.run("pull", DIGEST).stdout == "it is here\n"
    [known] = json.loads(node.run("list").stdout)
    assert known["digest"] == DIGEST
    assert known["size"] > 3 << 20
    assert known["seconds"] > 0


def test_an_image_that_is_one_file_is_fetched_by_its_checksum(node: Node) -> None:
    image = node.store / "packed"
    image.mkdir()
    (image / "image.sqsh").write_bytes(b"squash" * 1000)
    right = "sha256:" + hashlib.sha256(b"squash" * 1000).hexdigest()
    about = {"digest": DIGEST, "format": "sqfs", "file": "image.sqsh", "squashfs": right}
    (image / "image.json").write_text(json.dumps(about))
    assert node.run("pull", f"{DIGEST}.sqfs").returncode == 0
    assert (node.into / f"sha256-{'a' * 64}.sqfs" / "image.sqsh").read_bytes() == b"squash" * 1000
    (image / "image.json").write_text(json.dumps({**about, "digest": OTHER, "squashfs": OTHER}))
    assert node.run("pull", f"{OTHER}.sqfs").returncode == 1
    assert not node.place(OTHER + ".sqfs").exists()


@pytest.mark.parametrize("wrong", ["content", "more", "less", "mode", "listing"])
def test_a_copy_that_is_not_the_image_never_appears(node: Node, wrong: str) -> None:
    image = node.image()
    if wrong == "content":
        (image / "usr/lib/tool").write_bytes(b"#!/bin/xx\n")
    elif wrong == "more":
        (image / "usr/evil").write_text("x")
    elif wrong == "less":
        (image / "usr/lib/tool").unlink()
    elif wrong == "mode":
        (image / "usr/lib/tool").chmod(0o777)
    else:
        node.describe(image, DIGEST, listing="")
    done = node.run("pull", DIGEST)
    assert (done.returncode, "must be" in done.stderr) == (1, True), done.stderr
    assert not node.place().exists()
    assert not node.leftovers()


def test_a_setuid_file_or_a_pipe_is_refused(node: Node) -> None:
    image = node.image()
    (image / "usr/lib/tool").chmod(0o4755)
    assert "setuid" in node.run("pull", DIGEST).stderr
    (image / "usr/lib/tool").chmod(0o755)
    os.mkfifo(image / "usr/pipe")
    done = node.run("pull", DIGEST)
    assert done.returncode == 1
    assert "'usr/pipe'" in done.stderr
    assert not node.place().exists()


def test_bounds_of_room_files_and_time_hold(node: Node) -> None:
    node.image()
    node.settings = {"files": "3"}
    assert "more than 3 files" in node.run("pull", DIGEST).stderr
    node.settings = {"seconds": "0"}
    assert "took longer than" in node.run("pull", DIGEST).stderr
    node.settings = {"room_gib": "0"}
    assert "there is room for 0 MiB" in node.run("pull", DIGEST).stderr
    assert not node.place().exists()
    assert not node.leftovers()
    node.settings = {"room_gib": "lots"}
    assert "is a whole number" in node.run("pull", DIGEST).stderr


def test_a_node_takes_as_many_files_as_the_store() -> None:
    assert int(SETTINGS["images"]["files"]) >= Bounds().files


def test_digests_that_are_none_lead_nowhere(node: Node) -> None:
    for bad in ("torch", "../x", "sha256:" + "a" * 63, "sha256:" + "A" * 64, f"{DIGEST}.tar"):
        done = node.run("pull", bad)
        assert (done.returncode, "is not a digest" in done.stderr) == (1, True), bad
    assert "is in none of the stores" in node.run("pull", OTHER).stderr


def test_a_folder_that_others_can_write_is_refused(node: Node) -> None:
    node.image()
    node.into.mkdir(mode=0o777)
    node.into.chmod(0o777)
    assert "nobody else can write" in node.run("pull", DIGEST).stderr


def test_the_prolog_fetches_what_the_comment_names_and_never_fails(node: Node) -> None:
    node.image()
    assert node.run("prolog").returncode == 0
    assert not node.place().exists()
    comment = f"something else carme-image={DIGEST} more"
    assert node.run("prolog", SLURM_JOB_COMMENT=comment).returncode == 0
    assert node.place().is_dir()
    assert not node.place().is_symlink()
    missing = node.run("prolog", SLURM_JOB_COMMENT=f"carme-image={OTHER}")
    assert missing.returncode == 0
    assert "is not fetched" in missing.stderr
    for hostile in ("carme-image=../../etc", f"xcarme-image={OTHER}", f"carme-image={OTHER}/..", "carme-image="):
        assert node.run("prolog", SLURM_JOB_COMMENT=hostile).stderr == "", hostile


def test_an_image_that_is_here_costs_its_prolog_a_shell_and_no_more(node: Node) -> None:
    node.image()
    assert node.run("pull", DIGEST).returncode == 0
    node.remember(DIGEST, used=1.0)
    slow = node.folder / "carme-node-images"
    slow.write_text("#!/bin/sh\necho slow $1\n")
    slow.chmod(0o755)
    prolog = node.folder / "prolog"
    prolog.write_text(prolog_text(node.folder, str(node.folder / "node-images.conf")))

    def said(comment: str) -> str:
        environ = {"SLURM_JOB_COMMENT": comment}  # Slurm gives a Prolog no PATH
        done = subprocess.run(["/bin/sh", prolog], env=environ, capture_output=True, text=True, timeout=10, check=True)
        return done.stdout + done.stderr

    began = time.time()
    assert said(f"more carme-image={DIGEST} more") == ""
    [known] = json.loads(node.run("list").stdout)
    assert known["used"] >= began - 1, "it is not the first that makes room for others"
    for quiet in ("", "nothing", f"xcarme-image={DIGEST}"):
        assert said(quiet) == ""
    for other in (OTHER, f"{DIGEST}.sqfs", "sha256:../x", "sha256:$(echo x)"):
        assert said(f"carme-image={other}") == "slow prolog\n", other
    config = node.folder / "node-images.conf"
    for odd in ("into=/elsewhere", f"into = {node.into} # a comment", "into : x"):
        config.write_text(f"[images]\n{odd}\n")
        assert said(f"carme-image={DIGEST}") == "slow prolog\n", odd
    node.run("list")
    node.place().rename(node.folder / "away")
    node.place().symlink_to(node.folder / "away")
    assert said(f"carme-image={DIGEST}") == "slow prolog\n", "a link stands in for it"


def test_a_link_stands_in_for_an_image_that_cannot_be_fetched_until_it_can(node: Node) -> None:
    image = node.image()
    node.settings = {"room_gib": "0"}
    done = node.run("prolog", SLURM_JOB_COMMENT=f"carme-image={DIGEST}")
    assert done.returncode == 0
    assert node.place().is_symlink()
    assert node.place().resolve() == image.resolve()
    assert json.loads(node.run("list").stdout) == []
    node.settings = {}
    assert node.run("pull", DIGEST).stdout == "fetched\n"
    assert not node.place().is_symlink()
    assert entries(node.place()) == entries(image)
    assert not node.leftovers()


def test_two_jobs_that_begin_together_fetch_an_image_once(node: Node) -> None:
    node.image()
    done: list[subprocess.CompletedProcess[str]] = []
    threads = [threading.Thread(target=lambda: done.append(node.run("pull", DIGEST))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(each.stdout for each in done) == ["fetched\n", "it is here\n", "it is here\n"], done


def test_the_least_used_image_makes_room_unless_something_uses_it(node: Node) -> None:
    # Of no other test: it looks at what any process of this machine has mounted.
    images = ["sha256:" + os.urandom(32).hex() for _ in range(3)]
    for number, digest in enumerate(images):
        node.image(f"image{number}", digest, big=bytes(300 << 20) if number == 2 else b"x")
    for number, digest in enumerate(images[:2]):
        assert node.run("pull", digest).returncode == 0
        node.remember(digest, used=time.time() - 3600 + number, size=350 << 20)
    node.settings = {"room_gib": "1", "squeue": node.squeue("exit 1")}
    silent = node.run("pull", images[2])
    assert (silent.returncode, "squeue does not say" in silent.stderr) == (1, True), silent.stderr
    node.settings["squeue"] = node.squeue(f"echo '(null)'; echo 'a carme-image={images[1]} b'")
    busy = node.run("pull", images[2])  # its ranks have not started yet
    assert (busy.returncode, node.place(images[0]).exists()) == (0, False), busy.stderr
    assert node.place(images[1]).is_dir()
    node.run("remove", images[2])
    assert node.run("pull", images[0]).returncode == 0
    node.settings["squeue"] = node.squeue("[ $3 = n1 ] && echo '(null)'")
    for digest in images[:2]:
        node.remember(digest, used=time.time() - 3600, size=350 << 20)
    # What a container has bound is in the mounts of its processes; a bind of a folder needs root, as the program has.
    used = node.place(images[0])
    with subprocess.Popen(
        ["unshare", "-rm", "sh", "-c", f"mount --bind {used} /mnt && echo ready && exec sleep 60"],
        stdout=subprocess.PIPE,
    ) as container:
        assert container.stdout is not None
        assert container.stdout.readline() == b"ready\n"
        done = node.run("pull", images[2])
        container.kill()
    assert done.returncode == 0, done.stderr
    assert used.is_dir()
    assert not node.place(images[1]).exists()
    assert node.place(images[2]).is_dir()


class _Service(BaseHTTPRequestHandler):
    """Answers as the images service, and notes what it is told."""

    told: list[tuple[str, dict[str, Any], str]] = []

    def do_GET(self) -> None:
        self._answer({"images": [DIGEST, OTHER, "junk", 5]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.told.append((self.path, body, str(self.headers["Authorization"])))
        self._answer({})

    def _answer(self, body: dict[str, Any]) -> None:
        text = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Write nothing."""


def test_a_node_fetches_what_is_wanted_and_says_what_it_has(node: Node) -> None:
    node.image()
    token = node.folder / "token"
    token.write_text("of-nodes\n")
    token.chmod(0o644)
    with HTTPServer(("127.0.0.1", 0), _Service) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        node.service = {"url": f"http://127.0.0.1:{server.server_port}/services/images/", "token_file": str(token)}
        refused = node.run("sync")
        token.chmod(0o600)
        done = node.run("sync")
        server.shutdown()
        thread.join()
    assert refused.returncode == 1
    assert f"chmod 600 {token}" in refused.stderr
    assert done.returncode == 1
    assert f"{OTHER} is not fetched" in done.stderr
    [(path, body, authorization)] = _Service.told
    assert (path, authorization) == ("/services/images/api/v1/nodes/n1/images", "token of-nodes")
    held = {each["digest"]: each for each in body["images"]}
    assert held[DIGEST]["problem"] == ""
    assert held[DIGEST]["seconds"] > 0
    assert held[DIGEST]["size"] > 3 << 20
    assert "none of the stores" in held[OTHER]["problem"]
    assert body["free"] > 0


def test_a_service_that_does_not_answer_changes_nothing(node: Node) -> None:
    node.image()
    assert node.run("pull", DIGEST).returncode == 0
    token = node.folder / "token"
    token.write_text("x")
    token.chmod(0o600)
    node.service = {"url": "http://127.0.0.1:9/services/images/", "token_file": str(token)}
    assert node.run("sync").returncode == 1
    assert node.place().is_dir()
