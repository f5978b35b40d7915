"""Builds the forged ``libnvidia-ml.so.1`` of virtual GPUs, and runs code with it in a new process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from carme_hub.sandbox.slurm.virtual_driver import LIBRARY, build


class ForgedNVML:
    """GPUs as a text file says.

    Args:
        folder: for the library and its file. without: functions that the driver lacks: "ECC", "MEMORY_V2".
    """

    def __init__(self, folder: Path, *without: str) -> None:
        self._folder, self._file = folder, folder / "gpus"
        build(folder / LIBRARY, *without)
        self.set("")

    def set(self, text: str) -> None:
        """Have GPUs as the lines say, from the next call on."""
        part = self._file.with_suffix(".part")
        part.write_text(text)
        part.replace(self._file)

    @property
    def environ(self) -> dict[str, str]:
        """Return the environment of processes that are to see these GPUs."""
        return {**os.environ, "LD_LIBRARY_PATH": str(self._folder), "FORGED_NVML": str(self._file)}

    def run(self, code: str) -> str:
        """Run Python code in a process that sees these GPUs, and return what it prints."""
        argv = [sys.executable, "-c", code]
        return subprocess.run(argv, env=self.environ, check=True, capture_output=True, text=True, timeout=60).stdout
