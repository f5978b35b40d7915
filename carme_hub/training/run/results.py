"""Values that go to the ranks and come back: pickled by value, with an error that names a value that is unsuitable."""

from __future__ import annotations

import contextlib
import pickle
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .failures import CannotRun
from .private_files import write

#: The most bytes of pushed variables, and of the result of one rank; larger data belongs in a file.
LIMIT = 256 << 20
#: The most bytes that pickle adds to pulled variables.
_OVERHEAD = 1 << 16


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
    text = _pickle(value, what)
    if len(text) > limit:
        sizes = f"{format_size(len(text))}; the limit is {format_size(limit)}"
        raise Rejected(f"{what} has {sizes}. Keep it in a file, and push its path.")
    return text


def _pickle(value: Any, what: str) -> bytes:
    require_cloudpickle()
    import cloudpickle  # imported here: scripts need no cloudpickle

    try:
        text: bytes = cloudpickle.dumps(value)
    except Exception as error:  # any __reduce__ may raise anything
        reason = str(error).rstrip(".") or type(error).__name__
        raise Rejected(
            f"{what} cannot be pickled: {reason}. Create it in each rank from values that can be pickled."
        ) from error
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


def read_result(path: Path, limit: int | None = None) -> Any:
    """Return the result of a rank.

    Args:
        limit: the most bytes, None = any size.

    Raises:
        NoResult: there is none. Rejected: it is larger, or cannot be unpickled here.
    """
    try:
        if limit is not None and path.stat().st_size > limit + _OVERHEAD:
            raise Rejected(
                f"{path.name} has {format_size(path.stat().st_size)}; the limit is {format_size(limit)}. "
                f"{_how_to_read(path)}"
            )
        text = path.read_bytes()
    except FileNotFoundError:
        if why := _read_text(_problem_file(path)):
            raise NoResult(why) from None
        raise NoResult(f"There is no {path.name} in {path.parent}: the rank failed, or has not ended yet.") from None
    found = load(text, f"What is in {path.name}")
    if isinstance(found, Pulled):
        return load_variables(found.text)
    return found


def save_result(path: Path, value: Any, what: str, limit: int) -> None:
    """Write the result of a rank; a value that does not suit costs nothing but itself: a file beside it says why.

    Args:
        path: ``result-<rank>.pkl`` in the run's folder. what: names the value. limit: the most bytes that are returned.
    """
    try:
        text = _pickle(value, what)
        _write_result(path, text)
        if len(text) > limit:
            sizes = f"{format_size(len(text))}; the limit is {format_size(limit)}"
            _say_problem(path, f"{what} has {sizes}. It is in {path}. {_how_to_read(path)}")
    except Rejected as error:
        _say_problem(path, f"{error}")
    except OSError as error:
        _say_problem(path, f"{what} cannot be written: {error.strerror or error}.")


def save_pulled(path: Path, values: Mapping[str, Any], missing: Sequence[str], limit: int) -> None:
    """Write the variables of ``--pull``; each that does not suit is left out, in a file of its own if it is too large.

    Args:
        path: as of ``save_result``. missing: names that the code did not set. limit: the most bytes of all together.
    """
    texts: dict[str, bytes] = {}
    problems = [f"The code has no variable {name}, so --pull cannot fetch it." for name in missing]
    for name, value in values.items():
        what = f"The variable {name}"
        try:
            text = _pickle(value, what)
            if sum(map(len, texts.values())) + len(text) <= limit:
                texts[name] = text
                continue
            own = path.with_name(f"pulled-{name}.pkl")
            write(own, text)
            size = f"{format_size(len(text))}; --pull fetches {format_size(limit)} in all"
            problems.append(f"{what} has {size}. It is in {own}: pickle.load reads it.")
        except Rejected as error:
            problems.append(str(error))
        except OSError as error:
            problems.append(f"{what} cannot be written: {error.strerror or error}.")
    try:
        _write_result(path, pickle.dumps(Pulled(pickle.dumps(texts))))
    except OSError as error:
        problems.append(f"The variables cannot be written: {error.strerror or error}.")
    if problems:
        _say_problem(path, " ".join(problems))


def forget(folder: Path, rank: int) -> None:
    """Remove the result of a rank that is started again."""
    for suffix in (".pkl", ".txt"):
        (folder / f"result-{rank}{suffix}").unlink(missing_ok=True)
    if not rank:  # variables of rank 0 that were too large to fetch
        for path in folder.glob("pulled-*.pkl"):
            path.unlink(missing_ok=True)


def number_by_rank(folder: Path, ranks: Mapping[int, int]) -> None:
    """Rename the results of an elastic run's workers by the ranks that they had at the end.

    Args:
        folder: of the run. ranks: by the number of the worker; -1 = it had none.
    """
    found = {}
    for number, rank in ranks.items():
        for path in (folder / f"result-{number}.pkl", folder / f"result-{number}.txt"):
            if rank >= 0 and path.exists():
                found[path.with_name(f"result-{rank}{path.suffix}")] = path.rename(
                    path.with_name(f".result-{rank}{path.suffix}")
                )
    for path, aside in found.items():
        with contextlib.suppress(FileNotFoundError):
            aside.rename(path)


def problems(folder: Path) -> list[str]:
    """Return what could not be returned or fetched, of all ranks of a run."""
    return [text for path in sorted(folder.glob("result-*.txt")) if (text := _read_text(path))]


def _write_result(path: Path, text: bytes) -> None:
    write(path, text)
    _problem_file(path).unlink(missing_ok=True)


def _problem_file(path: Path) -> Path:
    return path.with_suffix(".txt")


def _say_problem(path: Path, text: str) -> None:
    with contextlib.suppress(OSError):  # a full disk; the rank's log has it too
        write(_problem_file(path), text.encode())
    print(f"[carme] {text}", file=sys.stderr)  # noqa: T201  the rank's own log


def _how_to_read(path: Path) -> str:
    rank = path.stem.removeprefix("result-")
    return f"Run.load({path.parent.name!r}).result({rank}, any_size=True) reads it here."


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


class Pulled:
    """Variables of rank 0 from ``dump_variables``. Result files hold pickles of this class, so its name stays."""

    def __init__(self, text: bytes) -> None:
        self.text = text


def format_size(count: int) -> str:
    """Return a number of bytes for users."""
    return f"{count / (1 << 20):,.1f} MiB" if count >= 1 << 20 else f"{count:,} bytes"
