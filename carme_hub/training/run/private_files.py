"""Writes files that only their owner can read, and that exist either completely or not at all; and looks for them."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def write(path: Path, text: bytes) -> None:
    """Write a file, replacing an older one."""
    part = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
        file.write(text)
    part.replace(path)


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write a JSON file."""
    write(path, json.dumps(document, separators=(",", ":")).encode())


def append(path: Path, documents: Iterable[dict[str, Any]]) -> None:
    """Append JSON documents to a file, one a line."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600), "a") as file:
        file.writelines(json.dumps(each) + "\n" for each in documents)


def exists(path: Path, *, unknown: bool = False) -> bool:
    """Return whether a file exists; return ``unknown`` where the home folder does not answer."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    except OSError:
        return unknown
    return True
