"""The driver of virtual GPUs: what a program that asks NVIDIA's management library (NVML) is told about them.

``virtual_nvml.c`` is a library that reads a text file for each node. The sandbox builds it beside the device files, and
``carme-hub sandbox gpu`` and the tests change the files. It makes nothing compute: everything that it says is forged,
and reports of these GPUs are labelled as virtual.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from carme_hub.errors import SandboxError
from carme_hub.sandbox.slurm.hardware import VirtualNode

SOURCE = Path(__file__).with_name("virtual_nvml.c")
LIBRARY = "libnvidia-ml.so.1"
#: Memory in MiB by GPU type; a type of MIG devices has "g." in its name.
MEMORY = {"a100": 40960, "h100": 81920, "1g.10gb": 9728, "3g.40gb": 40192}
#: What a virtual GPU can be told to say, with the key of its line.
CHANGES = {"utilisation": "utilisation", "memory": "used", "temperature": "temperature", "power": "power"}


def build(library: Path, *without: str) -> None:
    """Build the library; ``without`` leaves functions out, as an older driver does ("ECC", "MEMORY_V2").

    Raises:
        SandboxError: there is no compiler, or it failed.
    """
    options = ["-Wall", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{LIBRARY}"]
    new = library.with_name(library.name + f".{os.getpid()}")
    argv = ["gcc", *options, *(f"-DWITHOUT_{each}" for each in without), "-o", str(new), str(SOURCE)]
    try:
        subprocess.run(argv, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise SandboxError("gcc is needed for virtual GPUs: install the packages of sandbox/apt-packages.txt") from None
    except subprocess.CalledProcessError as error:
        raise SandboxError(f"The driver of virtual GPUs cannot be built: {error.stderr}") from error
    new.chmod(0o755)
    new.replace(library)  # a program that uses the older one keeps it


def install(folder: Path, nodes: tuple[VirtualNode, ...]) -> Path:
    """Put the library and the files of the nodes into a folder, where they are missing or old; return the library."""
    library, mark = folder / LIBRARY, folder / f"{LIBRARY}.source"
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()
    if not library.exists() or not mark.exists() or mark.read_text() != digest:
        build(library)
        mark.write_text(digest)
    for node in nodes:
        if not (folder / f"{node.name}.gpus").exists():
            _write(folder / f"{node.name}.gpus", _idle(node))
    return library


def _idle(node: VirtualNode) -> str:
    """Return the lines of a node whose GPUs do nothing."""
    lines = []
    for kind, first, last in node.devices():
        for number in range(first, last + 1):
            values: dict[str, object] = {
                "uuid": f"{'MIG' if 'g.' in kind else 'GPU'}-virtual-{node.name}-{number}",
                "name": f"Virtual {kind.upper()}",
                "minor": number,
                "total": MEMORY.get(kind, 40960),
                "used": 0,
                "temperature": 35,
            }
            if "g." not in kind:  # a MIG device has no utilisation and no power of its own
                values |= {"utilisation": 0, "power": 60_000, "limit": 400_000, "throttles": 0, "ecc": 0}
            lines += [f"{number} {key} {value}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def change(folder: Path, node: str, number: int, changes: Mapping[str, int | None]) -> dict[str, str]:
    """Have a virtual GPU say other values, and return all that it says.

    Args:
        changes: by the names of ``CHANGES``, power in watts; None = unknown from now on.

    Raises:
        SandboxError: there is no such GPU.
    """
    file = folder / f"{node}.gpus"
    try:
        rows = [line.split(" ", 2) for line in file.read_text().splitlines()]
    except FileNotFoundError:
        raise SandboxError(f"There is no virtual node {node} with GPUs: carme-hub sandbox status") from None
    if not any(row[0] == str(number) for row in rows):
        raise SandboxError(f"{node} has no GPU {number}.")
    keys = {
        CHANGES[name]: value if name != "power" or value is None else value * 1000 for name, value in changes.items()
    }
    kept = [row for row in rows if row[0] != str(number) or row[1] not in keys]
    kept += [[str(number), key, str(value)] for key, value in keys.items() if value is not None]
    _write(file, "".join(f"{' '.join(row)}\n" for row in kept))
    return {row[1]: row[2] for row in kept if row[0] == str(number)}


def _write(file: Path, text: str) -> None:
    new = file.with_suffix(".new")
    new.write_text(text)
    new.chmod(0o644)
    new.replace(file)  # a reader gets the old lines or the new ones
