"""What reading gives where it does not give a plain value, and names in syntax trees."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that only running the file would show; ``reason`` continues "cannot be read without running it: "."""

    reason: str
    line: int


@dataclass(frozen=True, slots=True)
class Imported:
    """A thing of another module, by its dotted name, such as ``batchspawner.SlurmSpawner``."""

    name: str


@dataclass(frozen=True, slots=True)
class LocalClass:
    """A class that the file defines, with the names of its bases."""

    name: str
    bases: tuple[str, ...]


def dotted(node: ast.AST) -> str:
    """Return ``a.b.c`` for a chain of names, "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (owner := dotted(node.value)):
        return f"{owner}.{node.attr}"
    return ""


def unknown_in(value: Any) -> Unknown | None:
    """Return the first part of a value that is unknown."""
    if isinstance(value, Unknown):
        return value
    parts: Iterable[Any] = ()
    if isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        parts = value
    return next((found for part in parts if (found := unknown_in(part))), None)


def is_apart(value: Any, owner: object) -> bool:
    """Whether an object is no part of a value, so that the value can become a part of it."""
    if value is owner:
        return False
    parts: Iterable[Any] = ()
    if isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, list | tuple):
        parts = value
    return all(is_apart(part, owner) for part in parts)


def is_plain(value: Any) -> bool:
    """Whether Python reads what ``repr`` writes of a value: no part of it is unknown, or a thing of a module."""
    if isinstance(value, Mapping):
        return all(is_plain(part) for item in value.items() for part in item)
    if isinstance(value, list | tuple | set | frozenset):
        return all(is_plain(part) for part in value)
    return value is None or (isinstance(value, str | bytes | int | float) and _is_written(value))


def _is_written(value: str | bytes | float) -> bool:
    return not isinstance(value, float) or math.isfinite(value)
