"""Runs a script or a cell as ``__main__``. A cell displays the value of its last expression, as in a notebook."""

from __future__ import annotations

import ast
import io
import sys
import tokenize
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import rich_output


def run_file(path: Path, names: Mapping[str, Any], *, cell: bool = False) -> dict[str, Any]:
    """Run a file as ``__main__`` and return its variables.

    Args:
        names: variables that it has from the beginning. cell: whether it is a cell of a notebook.
    """
    main = types.ModuleType("__main__")
    main.__dict__.update({"__file__": str(path), "__builtins__": __builtins__, **names})
    sys.modules["__main__"] = main
    source = path.read_bytes()
    tree = ast.parse(source, str(path))
    last = tree.body.pop() if cell and tree.body and isinstance(tree.body[-1], ast.Expr) else None
    # Without dont_inherit the code would be compiled with this file's own ``from __future__`` imports.
    exec(compile(tree, str(path), "exec", dont_inherit=True), main.__dict__)  # noqa: S102  this is what a rank is for
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), str(path), "eval", dont_inherit=True), main.__dict__)  # noqa: S307
        if value is not None and not _is_silenced(source):
            with rich_output.said_only():
                rich_output.display(value)
    return main.__dict__


def _is_silenced(source: bytes) -> bool:
    """Return whether the code ends with a semicolon, with which IPython shows no value."""
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER)
    words = [word.string for word in tokenize.tokenize(io.BytesIO(source).readline) if word.type not in skipped]
    return words[-1:] == [";"]
