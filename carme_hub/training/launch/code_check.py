"""Finds errors of syntax before a run opens anything, and names what is for IPython, since ranks are plain Python.

A cell is compiled as a rank will do it. A script is compiled where it is Python.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path

#: The first line of IPython's own syntax: a magic, a shell command, help, or a cell magic.
_MAGIC = re.compile(r"^\s*(%%?[A-Za-z]|!|\?|[\w.]+\s*=\s*[%!]|.*[\w)\]]\?\??\s*$)")


class CodeError(ValueError):
    """The code cannot run in a rank; the message names the line and says what to do."""


def check_cell(code: str) -> None:
    """Check the code of a cell.

    Raises:
        CodeError: it is no Python.
    """
    _check(code, "this cell")


def check_script(path: Path) -> None:
    """Check a script; a file that is not Python, by its name, is not read.

    Raises:
        CodeError: it is no Python.
    """
    if path.suffix in (".py", ".pyw"):
        _check(path.read_bytes(), path.name)


def _check(code: str | bytes, what: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the ranks will say them
            compile(code, what, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise CodeError(_describe(error, what)) from None
    except (RecursionError, MemoryError):
        pass  # the ranks will say it
    except ValueError as error:  # null bytes
        raise CodeError(f"{what[:1].upper()}{what[1:]} is no Python: {error}.") from None


def _describe(error: SyntaxError, what: str) -> str:
    line = (error.text or "").rstrip("\n")
    where = f"line {error.lineno} of {what}"
    if what == "this cell" and _MAGIC.match(line):
        return (
            f"In {where}: {line.strip()[:80]!r} is for IPython, and ranks are plain Python. Put it into a cell of its "
            "own, or use a function (subprocess.run in place of !)."
        )
    mark = f"\n    {' ' * max(0, (error.offset or 1) - 1)}^" if error.offset else ""
    code = f"\n    {line}{mark}" if line else ""
    return f"{type(error).__name__} in {where}: {error.msg}.{code}"
