"""Foreign images for tests: OCI layouts made of layers as they are written here, and a registry on loopback.

No tool that makes images would make the hostile ones, so their layers are archives that tests write entry by entry.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import io
import json
import os
import platform
import socket
import subprocess
import tarfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
OCI = "application/vnd.oci.image"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a layer: ``kind`` as tarfile's types; ``content`` of a file; ``target`` of a link."""

    name: str
    content: bytes = b""
    kind: bytes = tarfile.REGTYPE
    mode: int = 0o755
    target: str = ""
    pax: dict[str, str] = field(default_factory=dict)


def folder(name: str, mode: int = 0o755) -> Entry:
    return Entry(name, kind=tarfile.DIRTYPE, mode=mode)


def link(name: str, target: str) -> Entry:
    return Entry(name, kind=tarfile.SYMTYPE, target=target)


def hard_link(name: str, target: str) -> Entry:
    return Entry(name, kind=tarfile.LNKTYPE, target=target)


#: What every image of tests has.
SYSTEM = (
    folder("usr"),
    folder("usr/bin"),
    folder("etc"),
    link("bin", "usr/bin"),
    Entry("usr/bin/true", b"#!/bin/sh\n"),
)


def layer(entries: Sequence[Entry]) -> bytes:
    """Return a layer as a tar archive, the same for the same entries."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as file:
        for entry in entries:
            info = tarfile.TarInfo(entry.name)
            info.type, info.mode, info.linkname, info.mtime = entry.kind, entry.mode, entry.target, 1_700_000_000
            info.pax_headers = dict(entry.pax)
            if entry.kind in (tarfile.CHRTYPE, tarfile.BLKTYPE):
                info.devmajor, info.devminor = 1, 3
            info.size = len(entry.content)
            file.addfile(info, io.BytesIO(entry.content))
    return packed.getvalue()


def write_layout(
    to: Path,
    *layers: bytes,
    env: Sequence[str] = (),
    labels: dict[str, str] | None = None,
    tag: str = "image",
    kind: str = f"{OCI}.layer.v1.tar+gzip",
) -> str:
    """Write an OCI layout with one image of these layers, and return the digest of its manifest."""
    blobs = to / "blobs/sha256"
    blobs.mkdir(parents=True, exist_ok=True)

    def put(content: bytes) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"digest": f"sha256:{digest}", "size": len(content)}

    config = {
        "architecture": ARCHITECTURE,
        "os": "linux",
        "config": {"Env": list(env), "Labels": labels or {}},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(each).hexdigest()}" for each in layers]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{OCI}.manifest.v1+json",
        "config": {"mediaType": f"{OCI}.config.v1+json", **put(json.dumps(config).encode())},
        "layers": [{"mediaType": kind, **put(gzip.compress(each, 1, mtime=0))} for each in layers],
    }
    there = put(json.dumps(manifest).encode())
    entry = {
        "mediaType": f"{OCI}.manifest.v1+json",
        **there,
        "annotations": {"org.opencontainers.image.ref.name": tag},
    }
    (to / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (to / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return str(there["digest"])


@dataclass(frozen=True, slots=True)
class Registry:
    """A registry on loopback: its address, its storage, and a file with its password ("" = it needs none)."""

    address: str
    storage: Path
    authfile: str = ""

    def push(self, layout: Path, name: str, tag: str = "image") -> None:
        """Push the image of a layout."""
        words = ["--dest-authfile", self.authfile] if self.authfile else []
        argv = ["skopeo", "--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false", *words]
        to = f"docker://{self.address}/{name}"
        subprocess.run([*argv, f"oci:{layout}:{tag}", to], check=True, capture_output=True, timeout=60)

    def blob(self, digest: str) -> Path:
        """Return the file in which it stores a blob."""
        found = digest.removeprefix("sha256:")
        return self.storage / f"docker/registry/v2/blobs/sha256/{found[:2]}/{found}/data"


@contextlib.contextmanager
def registry(folder: Path, password: str = "", auth: dict[str, object] | None = None) -> Iterator[Registry]:
    """Run Debian's docker-registry; with a password its user is ``site``.

    Args:
        auth: in place of the password: the registry's own settings of who may what.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    settings: dict[str, object] = {
        "version": 0.1,
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "registry")}, "delete": {"enabled": True}},
        "http": {"addr": address},
    }
    authfile = ""
    if auth is not None:
        settings["auth"] = auth
    if password:
        (folder / "htpasswd").write_text(f"site:{_bcrypt(password)}\n")
        settings["auth"] = {"htpasswd": {"realm": "site", "path": str(folder / "htpasswd")}}
        said = base64.b64encode(f"site:{password}".encode()).decode()
        authfile = str(folder / "auth.json")
        Path(authfile).write_text(json.dumps({"auths": {address: {"auth": said}}}))
        Path(authfile).chmod(0o600)
    (folder / "registry.json").write_text(json.dumps(settings))  # JSON is YAML
    with (folder / "registry.log").open("w") as log:
        process = subprocess.Popen(["docker-registry", "serve", str(folder / "registry.json")], stdout=log, stderr=log)
    try:
        _wait(address, process)
        yield Registry(address, folder / "registry", authfile)
    finally:
        process.terminate()
        process.wait(10)


def _bcrypt(password: str) -> str:
    """Return a password as the registry's htpasswd has it, by the C library of Debian's own Python."""
    code = "import crypt, sys; print(crypt.crypt(sys.stdin.read(), '$2b$04$' + 'a' * 22))"
    argv = ["/usr/bin/python3", "-W", "ignore", "-c", code]
    return subprocess.run(argv, input=password, text=True, capture_output=True, check=True).stdout.strip()


def _wait(address: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(200):
        try:
            urllib.request.urlopen(f"http://{address}/", timeout=1).close()
        except OSError:
            assert process.poll() is None, "the registry ended"
            time.sleep(0.05)
        else:
            return
    raise AssertionError("the registry does not answer")


def below(tree: Path) -> dict[str, os.stat_result]:
    """Return the state of everything in a tree by its path inside; nothing is followed."""
    found = {}
    for at, folders, files in os.walk(tree):
        for name in (*folders, *files):
            path = f"{at}/{name}"
            found[os.path.relpath(path, tree)] = os.lstat(path)
    return found
