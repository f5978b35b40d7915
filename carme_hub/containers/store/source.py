"""Where an image comes from, as it is written: a registry, a layout, an archive, a SIF or squashfs file, a folder."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from carme_hub.errors import ContainerError

Kind = Literal["docker", "oci", "docker-archive", "oci-archive", "sif", "squashfs", "tar", "folder"]
#: Kinds that have a manifest and layers.
LAYERED = ("docker", "oci", "docker-archive", "oci-archive")
SQUASHFS = (".sqfs", ".sqsh", ".squashfs")
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".tar.zst")
#: What a digest is written like; it becomes part of names of files.
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")

# The grammar of github.com/distribution/reference, without user and password, which belong in no argument.
_HOST = r"(?:\[[0-9a-fA-F:]+\]|[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?)(?::[0-9]{1,5})?"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_DOCKER = re.compile(
    rf"(?P<repository>(?:{_HOST}/)?{_PART}(?:/{_PART})*)(?::(?P<tag>{_TAG}))?(?:@(?P<digest>sha256:[0-9a-f]{{64}}))?"
)
_LOOPBACK = re.compile(r"(?:localhost|127\.[0-9.]+|\[::1\])(?::[0-9]+)?/")


@dataclass(frozen=True, slots=True)
class Source:
    """A source of an image.

    Attributes:
        location: a repository of a registry, or an absolute path.
        tag: of a registry or in an OCI layout; "" = none is named. digest: named by the administrator, "" = none.
    """

    kind: Kind
    location: str
    tag: str = ""
    digest: str = ""

    def __str__(self) -> str:
        """Return the source as ``carme-hub image add`` takes it."""
        if self.kind == "docker":
            tag = f":{self.tag}" if self.tag else ""
            return f"docker://{self.location}{tag}" + (f"@{self.digest}" if self.digest else "")
        if self.kind in LAYERED:
            return f"{self.kind}:{self.location}" + (f":{self.tag}" if self.tag else "")
        return self.location

    @property
    def is_loopback(self) -> bool:
        """Whether it is a registry on this machine, with which Docker, too, speaks without TLS."""
        return self.kind == "docker" and bool(_LOOPBACK.match(self.location))

    @property
    def moves(self) -> bool:
        """Whether it may be another image tomorrow: a tag of a registry."""
        return self.kind == "docker" and not self.digest

    def at(self, digest: str) -> Source:
        """Return the source of exactly this digest."""
        return replace(self, digest=digest)

    def reference(self, digest: str = "") -> str:
        """Return the registry's image as skopeo takes it: by digest where there is one, and then without the tag."""
        digest = digest or self.digest
        return f"docker://{self.location}" + (f"@{digest}" if digest else f":{self.tag or 'latest'}")

    def default_name(self) -> str:
        """Return a name for the image: the last part of its location, and its tag."""
        stem = self.location.rstrip("/").rpartition("/")[2]
        for ending in (*ARCHIVES[::-1], *SQUASHFS, ".sif"):
            stem = stem.removesuffix(ending)
        tag = "" if self.tag in ("", "latest") else f"-{self.tag}"
        return re.sub(r"[^a-z0-9._-]+", "-", f"{stem}{tag}".lower()).strip("._-")[:64] or "image"


def parse_source(text: str) -> Source:
    """Return the source that is written so.

    Raises:
        ContainerError: it is none; the message lists what a source can be.
    """
    if "\0" in text or "\n" in text:
        raise ContainerError(f"{text!r} is not a source of an image")
    if text.startswith("docker://"):
        return _docker(text.removeprefix("docker://"))
    for kind in ("docker-archive", "oci-archive", "oci"):
        if text.startswith(f"{kind}:"):
            path, _, tag = text.removeprefix(f"{kind}:").partition(":")
            if tag and not re.fullmatch(r"[A-Za-z0-9_./:@-]{1,255}", tag):
                raise ContainerError(f"{tag!r} is not the name of an image in {path}")
            if not path:
                raise ContainerError(f"{text}: write {kind}:PATH, or {kind}:PATH:NAME")
            return Source(kind, _absolute(path), tag)
    if re.match(r"[a-z-]+:", text) and not Path(text).exists():
        raise ContainerError(
            f"{text} is not a source of an image. It is one of docker://REGISTRY/NAME:TAG, oci:FOLDER, "
            "oci-archive:FILE, docker-archive:FILE, a folder, or a file that ends in "
            f"{', '.join(('.sif', *SQUASHFS, *ARCHIVES))}"
        )
    return _path(Path(_absolute(text)))


def _docker(text: str) -> Source:
    if "@" in text.partition("/")[0]:
        raise ContainerError("a registry's user and password belong in a file: see --authfile")
    found = _DOCKER.fullmatch(text)
    if found is None:
        raise ContainerError(f"docker://{text} is not written as docker://REGISTRY/NAME:TAG or …/NAME@sha256:DIGEST")
    return Source("docker", found["repository"], found["tag"] or "", found["digest"] or "")


def _path(path: Path) -> Source:
    if path.is_dir():
        return Source("folder", str(path))
    if not path.is_file():
        raise ContainerError(f"{path} is neither a folder nor a file")
    if path.name.endswith(".sif"):
        return Source("sif", str(path))
    if path.name.endswith(SQUASHFS):
        return Source("squashfs", str(path))
    if path.name.endswith(ARCHIVES):
        return Source("tar", str(path))
    endings = ", ".join((*ARCHIVES, *SQUASHFS, ".sif"))
    raise ContainerError(f"{path} must be a folder, or end in one of {endings}")


def _absolute(path: str) -> str:
    return str(Path(path).absolute())
