"""What is inside an image, as far as it was found by looking: versions, "" = unknown. Pure.

The texts come out of images, which anybody may have made: they describe, and decide nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

_VERSION = re.compile(r"[0-9][0-9A-Za-z.+_!-]{0,39}")


@dataclass(frozen=True, slots=True)
class Contents:
    """Versions of what people look for in an image; "" = not found, or not looked for."""

    python: str = ""
    cuda: str = ""
    torch: str = ""
    jupyterlab: str = ""
    jupyterhub: str = ""

    def named(self) -> Iterator[tuple[str, str]]:
        """Yield (name for people, version) of what is known."""
        for each in fields(self):
            if value := getattr(self, each.name):
                yield NAMES[each.name], value

    @property
    def known(self) -> bool:
        """Whether anything was found."""
        return any(getattr(self, each.name) for each in fields(self))


#: The names of these parts, for people.
NAMES = {
    "python": "Python",
    "cuda": "CUDA",
    "torch": "torch",
    "jupyterlab": "JupyterLab",
    "jupyterhub": "JupyterHub",
}


def version(text: object) -> str:
    """Return a version as it is, "" where the text is none."""
    return text if isinstance(text, str) and _VERSION.fullmatch(text) else ""


def numbers(text: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a version: (12, 4) of "12.4+x"; () where there are none."""
    found = re.match(r"[0-9]{1,6}(?:\.[0-9]{1,6})*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def of_packages(packages: Mapping[str, Any]) -> Contents:
    """Return what a list of packages says: versions by name, by kind (python, conda, debian), as a recipe has it."""
    kinds = {kind: of if isinstance(of, Mapping) else {} for kind, of in packages.items()}
    python, conda = kinds.get("python", {}), kinds.get("conda", {})
    torch = version(python.get("torch") or conda.get("pytorch"))
    runtime = next(
        (version(of) for name, of in python.items() if re.fullmatch(r"nvidia-cuda-runtime(-cu\d+)?", name)), ""
    )
    return Contents(
        python=version(conda.get("python")),
        cuda=version(conda.get("cuda-cudart")) or runtime or cuda_of_torch(torch),
        torch=torch,
        jupyterlab=version(python.get("jupyterlab") or conda.get("jupyterlab")),
        jupyterhub=version(python.get("jupyterhub") or conda.get("jupyterhub")),
    )


def cuda_of_torch(torch: str) -> str:
    """Return the CUDA that a version of torch names: 12.4 of "2.6.0+cu124"; "" where it names none."""
    found = re.search(r"\+cu(\d{2})(\d)$", torch)
    return f"{found[1]}.{found[2]}" if found else ""


def merged(first: Contents, second: Contents) -> Contents:
    """Return the first, with what it does not know from the second."""
    values = {each.name: getattr(first, each.name) or getattr(second, each.name) for each in fields(Contents)}
    return Contents(**values)


def contents_from_json(value: object) -> Contents:
    """Return stored contents; what is not sensible is unknown."""
    said = value if isinstance(value, Mapping) else {}
    return Contents(**{each.name: version(said.get(each.name)) for each in fields(Contents)})
