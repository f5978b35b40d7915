"""What rank 0 displays beside text, read from the run's folder as it comes (rank/output/rich_output.py writes it)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class DisplayOutput:
    """An output as Jupyter's message ``display_data``.

    Attributes:
        data: by MIME type; metadata: as Jupyter's. id: "" = it is not updated later. update: whether it replaces the
            earlier ones with its id.
    """

    data: Mapping[str, Any]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    update: bool = False


class Displayed:
    """The file with what rank 0 displays (rank/output/rich_output.py), read as it grows.

    Args:
        path: it may not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0

    def read(self) -> list[DisplayOutput]:
        """Return the new outputs; what cannot be understood is left out."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                read = file.read()
        except OSError:  # nothing is displayed yet
            return []
        lines, complete, _ = read.rpartition(b"\n")
        self._at += len(lines) + len(complete)
        return [output for line in lines.split(b"\n") if (output := _parse_output(line))]


def _parse_output(line: bytes) -> DisplayOutput | None:
    with contextlib.suppress(ValueError):
        found = json.loads(line)
        if isinstance(found, dict) and isinstance(found.get("data"), dict) and isinstance(found.get("metadata"), dict):
            return DisplayOutput(
                found["data"], found["metadata"], str(found.get("id") or ""), bool(found.get("update"))
            )
    return None
