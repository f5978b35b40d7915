"""The training templates: scripts, and the notebooks that are generated from them.

A script begins with a docstring (first line: title; rest: what it teaches), trains when it is run, and sets
``history``, the mean loss of each epoch. Its notebook has the docstring as a cell of text, the number of ranks in a
cell, and the script under ``%%distributed``.

``python -m carme_hub.training.templates FOLDER`` writes the notebooks of all scripts in a folder.
"""

from __future__ import annotations

import ast
import errno
import json
import os
import re
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .installed import installed_scripts
from .kernels import missing_for

#: Templates that do not exist, and why.
UNAVAILABLE = (
    (
        "Horovod with Keras",
        "Keras 3, which comes with TensorFlow since 2.16, cannot be trained by Horovod 0.28.1, its last release "
        "(horovod/horovod#4290), and older TensorFlow is not in the images. Train Keras with its torch backend and "
        "the template for DDP.",
    ),
)
#: Order of the templates; a site's own templates, and those of other packages, come after these.
ORDER = (
    *("ddp", "horovod-pytorch", "fsdp", "cpu-gloo", "tensorboard-logging", "checkpoint-resume", "mixed-precision"),
    *("lr-warmup", "staging", "evaluation", "sweep", "scaling", "elastic-torch", "elastic-horovod"),
)
KERNELS = {
    "horovod": ("carme-horovod-pytorch", "Horovod, PyTorch"),
    "torchrun": ("carme-torchrun", "PyTorch, torchrun"),
}
RANKS = """\
# The number of ranks (processes), each with a GPU of its own where there are GPUs. If this session has too few GPUs, a
# companion job provides them: its price and its start are shown before it is requested.
RANKS = 1"""
PRINT_HISTORY = """\
print(*(f"epoch {epoch}: loss {loss:.3f}" for epoch, loss in enumerate(history, 1)), sep="\\n")"""


class TemplateError(Exception):
    """There is no such template, or it cannot be written; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Template:
    """One template.

    Attributes:
        name: of its files. title, about: from its docstring. backend: of its ranks.
        options: of its notebook besides the number of ranks, from its line `# %%distributed …`.
        starts_runs: whether the script starts runs itself, so that its notebook has no ``%%distributed``.
        broken: the error in a template of another package, of which only the name is known; "" for all others.
    """

    name: str
    title: str
    about: str
    backend: str
    script: Path
    options: str = ""
    starts_runs: bool = False
    broken: str = ""

    @property
    def missing(self) -> str:
        """Return what is missing here and what to do, or ""."""
        return missing_for(self.backend)


def folder() -> Path:
    """Return the folder of the templates.

    Raises:
        TemplateError: this installation has none.
    """
    package = Path(__file__).resolve().parents[2]
    for share in (package.parent / "share", Path(sys.prefix) / "share", *(p / "share" for p in package.parents)):
        if (share / "carme_hub/training/ddp.py").is_file():
            return share / "carme_hub/training"
    raise TemplateError("This installation of carme-hub has no templates. Install it again.")


def templates(where: Path | None = None) -> list[Template]:
    """Return all templates in the order of the gallery: those of a folder, or ours and those of other packages."""
    found = [read(script) for script in (folder() if where is None else where).glob("*.py")]
    if where is None:
        found += _from_packages({each.name for each in found})
    place = {name: number for number, name in enumerate(ORDER)}
    return sorted(found, key=lambda each: (place.get(each.name, len(ORDER)), each.title.lower()))


def _from_packages(ours: Collection[str]) -> list[Template]:
    """Return the templates of other packages."""
    found = []
    for each in installed_scripts(ours):
        wrong = each.wrong
        if each.script is not None:
            try:
                found.append(replace(read(each.script), name=each.name))
            except (OSError, ValueError, SyntaxError) as error:
                wrong = f"{each.script} is not a template: {error}."
        if wrong:
            message = f"{wrong} ({each.package})"
            found.append(Template(each.name, each.name, "", "torchrun", Path(each.name), broken=message))
    return found


def read(script: Path) -> Template:
    """Return the template of a script."""
    text = script.read_text(encoding="utf-8")
    title, _, about = (ast.get_docstring(ast.parse(text)) or script.stem).partition("\n")
    backend = "horovod" if re.search(r"^import horovod", text, re.MULTILINE) else "torchrun"
    options = re.search(r"^# %%distributed (.+)$", text, re.MULTILINE)
    return Template(
        *(script.stem, title.strip(), about.strip(), backend, script),
        options=options[1].strip() if options else "",
        starts_runs=bool(re.search(r"\bdistributed\.(benchmark|run|start)\(", text)),
    )


def find_template(name: str) -> Template:
    """Return one template.

    Raises:
        TemplateError: there is none of that name, or it cannot be used.
    """
    found = sorted(templates(), key=lambda each: bool(each.broken))  # a broken one must not hide a built-in one
    template = next((each for each in found if each.name == name), None)
    if template is None:
        known = ", ".join(each.name for each in found if not each.broken)
        raise TemplateError(f"There is no template {name[:64]!r}. There are {known}.")
    if template.broken:
        raise TemplateError(f"The template {name} cannot be copied. {template.broken}")
    return template


def copy(name: str, into: Path, *, script: bool = False) -> Path:
    """Copy a template's notebook, or its script, into a folder under a free name; return the copy.

    Raises:
        TemplateError: there is none of that name, or the folder cannot be written.
    """
    template = find_template(name)
    suffix = ".py" if script else ".ipynb"
    text = template.script.read_text(encoding="utf-8") if script else notebook_text(template)
    for number in range(1, 1000):
        target = into / f"{name}{'' if number == 1 else f'-{number}'}{suffix}"
        try:
            opened = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            continue
        except OSError as error:
            raise _write_error(into, error) from error
        try:
            with os.fdopen(opened, "w", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:  # full disk or exceeded quota: remove the incomplete copy
            target.unlink(missing_ok=True)
            raise _write_error(into, error) from error
        return target
    raise TemplateError(f"{into} has a thousand copies of {name}. Remove some.")


def _write_error(into: Path, error: OSError) -> TemplateError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    ways = (
        "Remove what you no longer need there."
        if full
        else "Ask its owner or your administrator for permission to write."
    )
    return TemplateError(f"Nothing was copied: {into} cannot be written: {error.strerror}. {ways}")


def notebook_text(template: Template) -> str:
    """Return a template's notebook as text."""
    return json.dumps(notebook(template), indent=1, ensure_ascii=False) + "\n"


def notebook(template: Template) -> dict[str, Any]:
    """Return a template's notebook, in Jupyter's format 4.5."""
    kernel, shown = KERNELS[template.backend]
    cells = _cells_of_launcher(template) if template.starts_runs else _cells(template)
    return {
        "cells": [_cell(template.name, *cell) for cell in enumerate(cells)],
        "metadata": {
            "kernelspec": {"display_name": shown, "language": "python", "name": kernel},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _cells(template: Template) -> list[tuple[str, str]]:
    options = f" {template.options}" if template.options else ""
    line = f"%%distributed -n {{RANKS}} --backend {template.backend}{options} --pull history\n"
    run = (
        "The cell below runs as that many ranks; it shows the output of rank 0, with that of the others folded below. "
        f"As a command: `carme-hub train -n 4 --backend {template.backend}{options} {template.name}.py`"
    )
    return [
        ("markdown", f"# {template.title}\n\n{template.about}\n\n{run}"),
        ("code", RANKS),
        ("code", line + _code(template.script)),
        ("code", PRINT_HISTORY),
    ]


def _cells_of_launcher(template: Template) -> list[tuple[str, str]]:
    return [
        ("markdown", f"# {template.title}\n\n{template.about}\n\nAs a command: `python {template.name}.py`"),
        ("code", _code(template.script)),
        ("code", "report"),
    ]


def _code(script: Path) -> str:
    """Return a script without its docstring, which becomes the notebook's text."""
    text = script.read_text(encoding="utf-8")
    first = ast.parse(text).body[0]
    lines = text.splitlines(keepends=True)
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return "".join(lines[first.end_lineno if documented else 0 :]).strip("\n")


def _cell(name: str, number: int, cell: tuple[str, str]) -> dict[str, Any]:
    kind, text = cell
    made: dict[str, Any] = {"cell_type": kind, "id": f"{name[:50]}-{number}", "metadata": {}}
    if kind == "code":
        made |= {"execution_count": None, "outputs": []}
    if text == RANKS:
        made["metadata"] = {"tags": ["parameters"]}  # the tag of papermill
    return {**made, "source": text.splitlines(keepends=True)}


def listed() -> str:
    """Return the templates as lines of text: name, title, script."""
    lines = []
    for each in templates():
        words = f"cannot be used: {each.broken}" if each.broken else f"{each.title}\n{'':22}{each.script}"
        lines.append(f"{each.name:22}{words}\n")
    return "".join(lines)


def write_notebooks(where: Path) -> Iterator[Path]:
    """Write the notebooks of all scripts in a folder, and yield their paths."""
    for template in templates(where):
        target = template.script.with_suffix(".ipynb")
        target.write_text(notebook_text(template), encoding="utf-8")
        yield target


def main(argv: list[str] | None = None) -> None:
    """Write the notebooks of a folder."""
    [where] = argv or sys.argv[1:] or [str(folder())]
    for target in write_notebooks(Path(where)):
        print(target)  # noqa: T201  that is all it says
