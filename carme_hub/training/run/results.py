"""What goes to the ranks and comes back is pickled by value, and what is too large or cannot be is named."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .failures import CannotRun

#: The most bytes that are sent, or returned by one rank: more belongs in a file.
LIMIT = 256 << 20


class Rejected(CannotRun, ValueError):
    """Something cannot be pickled or is too large; the message names it and says what to do."""


class NoResult(CannotRun, LookupError):
    """A rank returned nothing; the message says what to do."""


def check() -> None:
    """Look whether anything can be pickled here.

    Raises:
        Rejected: there is no cloudpickle.
    """
    if find_spec("cloudpickle") is None:
        raise Rejected(
            "What is sent to ranks and comes back is pickled by cloudpickle, which is not here. Install it where this "
            f"and the ranks run: {sys.executable} -m pip install cloudpickle"
        )


def pickled(value: Any, what: str, limit: int = LIMIT) -> bytes:
    """Return a value as bytes.

    Args:
        what: it is, for the message. limit: the most bytes.

    Raises:
        Rejected: it cannot be pickled, or is larger.
    """
    check()
    import cloudpickle  # so that a script needs no cloudpickle

    try:
        text: bytes = cloudpickle.dumps(value)
    except Exception as error:  # any __reduce__ may raise anything
        said = str(error).rstrip(".") or type(error).__name__
        raise Rejected(f"{what} cannot be pickled: {said}. Make it in each rank, from what can be.") from error
    if len(text) > limit:
        raise Rejected(
            f"{what} has {size(len(text))}; the limit is {size(limit)}. Keep it in a file, and send its path."
        )
    return text


def pushed(values: Mapping[str, Any], limit: int = LIMIT) -> bytes:
    """Return variables as bytes, each pickled by itself, so that each that fails is named; errors as ``pickled``."""
    texts: dict[str, bytes] = {}
    for name, value in values.items():
        texts[name] = pickled(value, f"The variable {name}", limit)
    total = sum(map(len, texts.values()))
    if total > limit:
        largest = max(texts, key=lambda name: len(texts[name]))
        raise Rejected(
            f"The variables have {size(total)} together, {largest} alone {size(len(texts[largest]))}; the limit is "
            f"{size(limit)}. Keep large ones in files, and send their paths."
        )
    return pickle.dumps(texts)


def pulled(text: bytes) -> dict[str, Any]:
    """Return the variables of ``pushed``.

    Raises:
        Rejected: one of them cannot be unpickled here.
    """
    return {name: unpickled(each, f"The variable {name}") for name, each in pickle.loads(text).items()}  # noqa: S301


def unpickled(text: bytes, what: str) -> Any:
    """Return a value of ``pickled``.

    Raises:
        Rejected: it cannot be unpickled here.
    """
    try:
        return pickle.loads(text)  # noqa: S301  out of the user's own folder, which nobody else can write to
    except Exception as error:  # any __setstate__ may raise anything
        lacks = (
            f" {error.name} has to be importable here, too, as it is for the ranks."
            if isinstance(error, ModuleNotFoundError) and error.name
            else ""
        )
        raise Rejected(f"{what} cannot be unpickled: {type(error).__name__}: {error}.{lacks}") from error


def read(path: Path) -> Any:
    """Return what a rank returned.

    Raises:
        NoResult: there is nothing. Rejected: it cannot be unpickled here.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise NoResult(f"There is no {path.name} in {path.parent}: the rank has not ended well, or not yet.") from None
    found = unpickled(text, f"What is in {path.name}")
    if isinstance(found, Pulled):
        return pulled(found.text)
    return found


class Pulled:
    """Variables of rank 0, as ``pushed`` made them."""

    def __init__(self, text: bytes) -> None:
        self.text = text


def size(count: int) -> str:
    """Return a number of bytes as people write it."""
    return f"{count / (1 << 20):,.1f} MiB" if count >= 1 << 20 else f"{count:,} bytes"
