"""What code says of its run: seeds, versions of data, hyperparameters. ``here.log_params`` calls it."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from carme_hub.training.run import private_files
from carme_hub.training.run.messages import PARAMS

#: The most bytes of what is recorded.
MAX_BYTES = 1 << 16


def log_params(**values: Any) -> None:
    """Record what describes this run, to find and compare it by: seeds, versions of data, hyperparameters.

    Each call adds to the earlier ones; a name that comes again has its new value. Only rank 0 writes.

    Args:
        values: numbers, texts, and lists of them; anything else is kept as its ``str``.

    Raises:
        ValueError: they are more than 64 KiB in all.
    """
    folder = os.environ.get("CARME_RUN_FOLDER", "")
    if not folder or os.environ.get("CARME_RANK", "0") != "0":
        return
    path = Path(folder) / PARAMS
    with contextlib.suppress(OSError, ValueError):  # none yet
        values = json.loads(path.read_text()) | values
    text = json.dumps(values, default=str)
    if len(text) > MAX_BYTES:
        raise ValueError(f"The parameters of a run are at most {MAX_BYTES} bytes. Keep larger ones in a file.")
    with contextlib.suppress(OSError):  # a full disk costs the record and not the training
        private_files.write(path, text.encode())
