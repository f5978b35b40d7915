"""The headers of tus 1.0: numbers, checksums, metadata and dates, from text and into it."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

from carme_hub.files.places import NotPossible
from carme_hub.files.uploads import LENGTH_MAX, Upload

CHECKSUMS = ("sha1", "sha256", "sha512", "md5")
#: Bytes of Upload-Metadata, which is kept with the upload.
METADATA_MAX = 16_384


def number(headers: Mapping[str, str], name: str) -> int:
    """Return a header that is a number of bytes."""
    text = headers.get(name, "")
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > LENGTH_MAX:
        raise NotPossible(400, f"{name} has to be a number of bytes.")
    return int(text)


def checksum_of(headers: Mapping[str, str]) -> tuple[Any, bytes] | None:
    """Return a hash and the digest that the body shall have; None where the request names none."""
    text = headers.get("Upload-Checksum", "")
    if not text:
        return None
    name, _, digest = text.partition(" ")
    if name not in CHECKSUMS:
        raise NotPossible(400, f"Upload-Checksum: {name[:20]!r} is none of {', '.join(CHECKSUMS)}.")
    try:
        return hashlib.new(name, usedforsecurity=False), base64.b64decode(digest, validate=True)
    except binascii.Error as error:
        raise NotPossible(400, "Upload-Checksum: the digest has to be Base64.") from error


def metadata(text: str) -> dict[str, bytes]:
    """Return the values of Upload-Metadata by their keys."""
    if len(text) > METADATA_MAX:
        raise NotPossible(413, f"Upload-Metadata has more than {METADATA_MAX} bytes.")
    found: dict[str, bytes] = {}
    for pair in text.split(",") if text.strip() else ():
        key, _, value = pair.strip().partition(" ")
        try:
            decoded = base64.b64decode(value, validate=True)
        except binascii.Error:
            decoded = b"\0"
        if not key or key in found or decoded == b"\0":
            raise NotPossible(400, "Upload-Metadata: pairs of a key and a value in Base64, each key once.")
        found[key] = decoded
    return found


def expires(upload: Upload) -> str:
    """Return when an upload expires, as RFC 9110 writes it."""
    return format_datetime(datetime.fromtimestamp(upload.expires, UTC), usegmt=True)
