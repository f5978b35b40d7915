"""Manifests of images, as registries and OCI layouts have them (image-spec 1.1; Docker's schema 2). Pure."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from carme_hub.errors import ContainerError

from .source import DIGEST

#: GOARCH by what the kernel calls the machine.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64le", "s390x": "s390x", "riscv64": "riscv64"}
#: Larger than any that a registry accepts.
MAX_BYTES = 4 << 20
_GZIP = ("application/vnd.oci.image.layer.v1.tar+gzip", "application/vnd.docker.image.rootfs.diff.tar.gzip")
#: What umoci unpacks.
LAYERS = (*_GZIP, "application/vnd.oci.image.layer.v1.tar", "application/vnd.docker.image.rootfs.diff.tar")


@dataclass(frozen=True, slots=True)
class Blob:
    """A part of an image: ``digest`` as ``sha256:HEX``, ``size`` in bytes as it is stored."""

    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """One image for one kind of machine."""

    digest: str
    config: Blob
    layers: tuple[Blob, ...]

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """All parts, each once, without the manifest itself."""
        return tuple({blob.digest: blob for blob in (self.config, *self.layers)}.values())

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(blob.size for blob in self.blobs)


def architecture() -> str:
    """Return this machine's kind as manifests name it."""
    return ARCHITECTURES.get(platform.machine(), platform.machine())


def digest_of(content: bytes) -> str:
    """Return the digest of a text."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def read_json(content: bytes, what: str) -> dict[str, Any]:
    """Return a JSON object.

    Raises:
        ContainerError: it is none, or too long.
    """
    try:
        if len(content) > MAX_BYTES:
            raise ValueError("it is too long")
        value = json.loads(content)
        if not isinstance(value, dict):
            raise ValueError("it is no object")
    except (ValueError, RecursionError) as error:
        raise ContainerError(f"{what} cannot be read: {error}") from error
    return value


def instance(content: bytes) -> str:
    """Return the digest of this machine's image in an index; "" where the text is a manifest itself.

    Raises:
        ContainerError: the index has none for this machine.
    """
    value = read_json(content, "the manifest")
    if not isinstance(value.get("manifests"), list):
        return ""
    there = []
    for entry in value["manifests"]:
        where = entry.get("platform") if isinstance(entry, dict) else None
        where = where if isinstance(where, dict) else {}
        kind = (where.get("os"), where.get("architecture"))
        if (kind == ("linux", architecture()) and not where.get("variant", "")) or len(value["manifests"]) == 1:
            return entry_digest(entry)
        if kind == ("linux", architecture()):
            there.append(entry_digest(entry))
    if there:
        return there[0]
    known = sorted({str(each.get("platform", {}).get("architecture")) for each in value["manifests"] if _has(each)})
    raise ContainerError(f"the image is not for this machine ({architecture()}); it is for {', '.join(known)}")


def parse_manifest(content: bytes) -> Manifest:
    """Return the manifest of one image.

    Raises:
        ContainerError: it is no manifest of an image, or has layers that cannot be unpacked here.
    """
    value = read_json(content, "the manifest")
    config, layers = value.get("config"), value.get("layers")
    if not isinstance(config, dict) or not isinstance(layers, list) or not layers:
        raise ContainerError("it is not the manifest of an image with layers (Docker's schema 1 is not supported)")
    for layer in layers:
        kind = layer.get("mediaType") if isinstance(layer, dict) else None
        if kind not in LAYERS:
            raise ContainerError(
                f"a layer of the image is of the kind {kind!r}, which umoci cannot unpack; push the image with gzip: "
                "skopeo copy --dest-compress-format gzip"
            )
    return Manifest(digest_of(content), _blob(config), tuple(_blob(layer) for layer in layers))


def _blob(entry: Mapping[str, Any]) -> Blob:
    size = entry.get("size")
    if type(size) is not int or size < 0:
        raise ContainerError("a part of the image has no size")
    return Blob(entry_digest(entry), size)


def entry_digest(entry: Mapping[str, Any]) -> str:
    """Return the digest that an entry of a manifest or an index names."""
    digest = entry.get("digest")
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise ContainerError(f"{str(digest)[:80]!r} is not a digest; only sha256 is used")
    return digest


def _has(entry: object) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("platform", {}), dict)
