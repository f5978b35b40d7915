"""Values that go to the ranks and come back: pickled by value, with an error that names a value that is unsuitable."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .failures import CannotRun

#: The most bytes of pushed variables, and of the result of one rank; larger data belongs in a file.
LIMIT = 256 << 20


class Rejected(CannotRun, ValueError):
    """A value cannot be pickled or is too large; the message names it and says what to do."""


class NoResult(CannotRun, LookupError):
    """A rank has no result; the message says what to do."""


def require_cloudpickle() -> None:
    """Check that values can be pickled here.

    Raises:
        Rejected: cloudpickle is missing.
    """
    if find_spec("cloudpickle") is None:
        raise Rejected(
            "cloudpickle, which pickles values for ranks and their results, is not installed. Install it where this "
            f"and the ranks run: {sys.executable} -m pip install cloudpickle"
        )


def dump(value: Any, what: str, limit: int = LIMIT) -> bytes:
    """Pickle a value.

    Args:
        what: names the value in the message. limit: the most bytes.

    Raises:
        Rejected: it cannot be pickled, or is larger.
    """
    require_cloudpickle()
    import cloudpickle  # imported here: scripts need no cloudpickle

    try:
        text: bytes = cloudpickle.dumps(value)
    except Exception as error:  # any __reduce__ may raise anything
        reason = str(error).rstrip(".") or type(error).__name__
        raise Rejected(
            f"{what} cannot be pickled: {reason}. Create it in each rank from values that can be pickled."
        ) from error
    if len(text) > limit:
        sizes = f"{format_size(len(text))}; the limit is {format_size(limit)}"
        raise Rejected(f"{what} has {sizes}. Keep it in a file, and push its path.")
    return text


def dump_variables(values: Mapping[str, Any], limit: int = LIMIT) -> bytes:
    """Pickle variables, each by itself, so that an error names the variable; errors as ``dump``."""
    texts: dict[str, bytes] = {}
    for name, value in values.items():
        texts[name] = dump(value, f"The variable {name}", limit)
    total = sum(map(len, texts.values()))
    if total > limit:
        largest = max(texts, key=lambda name: len(texts[name]))
        raise Rejected(
            f"The variables have {format_size(total)} together, {largest} alone {format_size(len(texts[largest]))}; "
            f"the limit is {format_size(limit)}. Keep large ones in files, and push their paths."
        )
    return pickle.dumps(texts)


def load_variables(text: bytes) -> dict[str, Any]:
    """Unpickle the variables of ``dump_variables``.

    Raises:
        Rejected: one of them cannot be unpickled here.
    """
    return {name: load(each, f"The variable {name}") for name, each in pickle.loads(text).items()}  # noqa: S301


def load(text: bytes, what: str) -> Any:
    """Unpickle a value of ``dump``.

    Raises:
        Rejected: it cannot be unpickled here.
    """
    try:
        return pickle.loads(text)  # noqa: S301  out of the user's own folder, which nobody else can write to
    except Exception as error:  # any __setstate__ may raise anything
        lacks = (
            f" {error.name} must be importable here too, as it is in the ranks."
            if isinstance(error, ModuleNotFoundError) and error.name
            else ""
        )
        raise Rejected(f"{what} cannot be unpickled: {type(error).__name__}: {error}.{lacks}") from error


def read_result(path: Path) -> Any:
    """Return the result of a rank.

    Raises:
        NoResult: there is none. Rejected: it cannot be unpickled here.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise NoResult(f"There is no {path.name} in {path.parent}: the rank failed, or has not ended yet.") from None
    found = load(text, f"What is in {path.name}")
    if isinstance(found, Pulled):
        return load_variables(found.text)
    return found


class Pulled:
    """Variables of rank 0 from ``dump_variables``. Result files hold pickles of this class, so its name stays."""

    def __init__(self, text: bytes) -> None:
        self.text = text


def format_size(count: int) -> str:
    """Return a number of bytes for users."""
    return f"{count / (1 << 20):,.1f} MiB" if count >= 1 << 20 else f"{count:,} bytes"
