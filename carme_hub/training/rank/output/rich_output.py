"""Rich output of rank 0: what its code displays, for the notebook that shows the run.

``display()``, the value of a cell's last expression and matplotlib's figures become bundles by MIME type, as Jupyter
has them, one line of JSON each in ``display.jsonl`` of the run's folder. The notebook publishes them below the run
(notebook/follow.py), so they are saved with it. The other ranks print text, as Python without a notebook does: what
all ranks display is there once. IPython makes the bundles; it is imported when something is displayed, and where an
image does not have it, text is printed.
"""

from __future__ import annotations

import base64
import builtins
import contextlib
import json
import os
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from carme_hub.training.rank.import_hook import after_import
from carme_hub.training.run.messages import DISPLAYED

#: The most bytes of what one run displays: it is in the notebook's file too, which a browser loads.
MAX_BYTES = 64 << 20
_BACKEND = "module://carme_hub.training.rank.output.matplotlib_backend"
_PLAIN = (bool, bytes, complex, float, int, str)
_lock = threading.Lock()
_formatter: Any = None
_full = False


def install() -> None:
    """Have ``display``, with or without IPython's import of it, and matplotlib's figures go to the notebook."""
    builtins.display = display  # type: ignore[attr-defined]  # as in a kernel
    after_import("IPython.core.display_functions", _replace)
    if "MPLBACKEND" not in os.environ:
        after_import("matplotlib", lambda matplotlib: matplotlib.use(_BACKEND))


def show_figures() -> None:
    """Show the figures that the code has left open, as a notebook does at the end of a cell."""
    if backend := sys.modules.get(_BACKEND.removeprefix("module://")):
        with said_only():
            backend.FigureManager.pyplot_show()


@contextlib.contextmanager
def said_only() -> Iterator[None]:
    """Print an error of what is displayed when the code has ended: hours of training do not fail by it."""
    try:
        yield
    except Exception:  # noqa: BLE001  a repr of anybody
        traceback.print_exc()
        print("[carme] This could not be displayed.", file=sys.stderr)  # noqa: T201


def display(
    *values: Any,
    include: Any = None,
    exclude: Any = None,
    metadata: Mapping[str, Any] | None = None,
    transient: Mapping[str, Any] | None = None,
    display_id: str | bool | None = None,
    raw: bool = False,
    clear: bool = False,  # noqa: ARG001  output of a run is not cleared
    update: bool = False,
    **_: Any,
) -> Any:
    """Display values; the arguments are those of ``IPython.display.display``."""
    id = str((transient or {}).get("display_id") or "")
    if display_id is not None and display_id is not False:
        id = os.urandom(16).hex() if display_id is True else display_id
    given: tuple[Any, ...] = values or (({},) if id else ())
    for value in given:
        data, about = _format(value, include, exclude) if values and not raw else (dict(value), {})
        publish(data, {**about, **(metadata or {})}, transient={"display_id": id} if id else None, update=update)
    if not display_id:
        return None
    return _load_formatter() and sys.modules["IPython.core.display_functions"].DisplayHandle(id)


def publish(
    data: Mapping[str, Any],
    metadata: Mapping[str, Any] | None = None,
    *,
    transient: Mapping[str, Any] | None = None,
    update: bool = False,
    **_: Any,
) -> None:
    """Display a bundle; the arguments are those of ``IPython.display.publish_display_data``.

    What is only text is printed, so that it stands in the log between the other lines.
    """
    if not data and not transient:
        return  # the value has displayed itself
    folder = os.environ.get("CARME_RUN_FOLDER", "")
    alone = set(data) <= {"text/plain"} and not transient
    if alone or not folder or not _is_in_front():
        if text := data.get("text/plain"):
            print(text)  # noqa: T201  this is where the user reads it
        return
    coded = {kind: _encode(value) for kind, value in data.items()}
    line = {"data": coded, "metadata": metadata or {}, "id": (transient or {}).get("display_id", ""), "update": update}
    _append(Path(folder) / DISPLAYED, json.dumps(line, default=str).encode() + b"\n")


def _append(path: Path, line: bytes) -> None:
    global _full
    with _lock:
        if _full:
            return
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                if _full := os.fstat(file).st_size + len(line) > MAX_BYTES:
                    print(f"[carme] what is displayed from here on is more than {MAX_BYTES >> 20} MiB, and is not kept")  # noqa: T201
                    return
                while line:
                    line = line[os.write(file, line) :]
            finally:
                os.close(file)
        except OSError as error:  # a full disk costs a picture and not the run
            print(f"[carme] an output cannot be kept: {error}")  # noqa: T201


def _encode(value: Any) -> Any:
    """Return binary data as Jupyter's messages have it."""
    return base64.encodebytes(value).decode() if isinstance(value, bytes) else value


def _is_in_front() -> bool:
    return os.environ.get("CARME_RANK", "0") == "0"


def _format(value: Any, include: Any, exclude: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    # Without IPython where its import, a third of a second, would change nothing.
    formatter = _load_formatter() if _is_in_front() and type(value) not in _PLAIN else None
    if formatter is None:
        return {"text/plain": repr(value)}, {}
    data, metadata = formatter.format(value, include=include, exclude=exclude)
    return dict(data), dict(metadata)


def _load_formatter() -> Any:
    """Return IPython's formatter of values; None where the image has no IPython."""
    global _formatter
    if _formatter is None:
        try:
            from IPython.core.formatters import DisplayFormatter
            from IPython.core.pylabtools import print_figure
        except ImportError:
            return None
        import IPython.core.display_functions  # noqa: F401  its DisplayHandle

        _formatter = DisplayFormatter()
        _formatter.formatters["image/png"].for_type_by_name(
            "matplotlib.figure", "Figure", lambda figure: print_figure(figure, base64=True)
        )
    return _formatter


def _replace(module: ModuleType) -> None:
    """Replace what IPython's own functions would send to a shell, which a rank does not have."""
    module.display = display  # type: ignore[attr-defined]
    module.publish_display_data = publish  # type: ignore[attr-defined]
