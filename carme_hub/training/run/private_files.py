"""Files of a run are its owner's alone, and are there as a whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write(path: Path, text: bytes) -> None:
    """Write a file in place of what has its name."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
        file.write(text)
    part.replace(path)


def keep(path: Path, said: dict[str, Any]) -> None:
    """Write a file of JSON."""
    write(path, json.dumps(said, separators=(",", ":")).encode())
