"""What a page of the docs tells an administrator to do, step by step, as the page itself says it.

A comment before a code block says where the block runs; who reads the page does not see it:

- ``<!-- on: hub, as: root -->``: commands, on a kind of machine (or several: ``hub controller``), as a user;
- ``<!-- on: hub, file: /path -->``: the content of a new file, as an editor would write it;
- ``<!-- on: hub, add to: /path -->``: lines for the end of a file;
- ``<!-- on: hub, set in: /path -->``: lines ``Name=value``, each in the place of the one that is there;
- ``<!-- not run: reason -->``: a block that is not part of the installation.

``<!-- then: page.md#section, … -->`` stands for the steps of those sections, and ``<!-- given: /path, … -->`` lists
what a site has before. ``tests/site`` installs a site by these steps alone; a unit test checks them without one.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
#: The two ways of an installation.
BY_HAND, BY_SETUP = "howto/real-site.md#by-hand", "howto/real-site.md#by-one-command"
MACHINES = ("hub", "controller", "nodes")
WAYS = ("file", "add to", "set in")
_MARK = re.compile(r"^\s*<!-- ((?:on|then|given|not run): .*) -->\s*$")
_FENCE = re.compile(r"^(\s*)```(.*)$")
_HEADING = re.compile(r"^##+ (.+)$")


class NotUnderstood(Exception):
    """A page cannot be read as steps; the message says where and why."""


@dataclass(frozen=True, slots=True)
class Step:
    """One code block.

    Attributes:
        page: the page's name below ``docs``. line: of the block's first line, from 1.
        machines: of ``MACHINES``. user: who runs the commands.
        way: "run", or one of ``WAYS``. path: the file of the latter. text: the block, without its indentation.
    """

    page: str
    line: int
    machines: tuple[str, ...]
    user: str
    way: str
    path: str
    text: str

    @property
    def place(self) -> str:
        """Return page and line, to be found by."""
        return f"{self.page}:{self.line}"


@dataclass(frozen=True, slots=True)
class Instructions:
    """The steps of a section in order, those of others where it leads to them; and what a site has before."""

    steps: tuple[Step, ...]
    given: tuple[str, ...]


def read(where: str, docs: Path = DOCS) -> Instructions:
    """Return what a section says.

    Args:
        where: ``page.md#section``; without a section it is what comes before the page's first one.

    Raises:
        NotUnderstood: a block without a mark, a mark without a block, an unknown machine or section; no step.
    """
    steps: list[Step] = []
    given: list[str] = []
    page, _, section = where.partition("#")
    _read(docs, page, section, steps, given, ())
    if not steps:
        raise NotUnderstood(f"{where} has no block that runs")
    return Instructions(tuple(steps), tuple(given))


def _read(
    docs: Path, page: str, section: str, steps: list[Step], given: list[str], within: tuple[tuple[str, str], ...]
) -> None:
    """Append the steps and the given paths of a section; "" is what comes before the first one."""
    if (page, section) in within:
        raise NotUnderstood(f"{page}#{section} leads to itself")
    lines = enumerate((docs / page).read_text(encoding="utf-8").splitlines(), 1)
    here, mark, found = "", "", section == ""
    for number, line in lines:
        place = f"{page}:{number}"
        heading, fence, new = _HEADING.match(line), _FENCE.match(line), _MARK.match(line)
        if heading:
            here = _anchor(heading[1])
            found = found or here == section
        block = [text for _, text in _until_closed(lines, place, fence[1])] if fence else []
        if here != section:
            continue
        if mark and line.strip() and not fence:
            raise NotUnderstood(f"{place}: <!-- {mark} --> stands before no block")
        if fence and not mark:
            raise NotUnderstood(f"{place}: no comment says where this block runs")
        if fence:
            step = _step(mark, block, page, number + 1)
            steps += [step] if step else []
            mark = ""
        elif new and new[1].startswith("then: "):
            for target in _values(new[1]):
                other, _, anchor = target.partition("#")
                _read(docs, str(Path(page).parent / other), anchor, steps, given, (*within, (page, section)))
        elif new and new[1].startswith("given: "):
            given += _values(new[1])
        elif new:
            mark = new[1]
    if mark:
        raise NotUnderstood(f"{page}: <!-- {mark} --> stands before no block")
    if not found:
        raise NotUnderstood(f"{page} has no section #{section}")


def _until_closed(lines: enumerate[str], place: str, indent: str) -> list[tuple[int, str]]:
    """Return a block's lines, and take them and the closing fence from what is ahead."""
    block = []
    for number, line in lines:
        if line.rstrip() == f"{indent}```":
            return block
        block.append((number, line))
    raise NotUnderstood(f"{place}: the block has no end")


def _step(mark: str, block: list[str], page: str, line: int) -> Step | None:
    """Return the step that a mark makes of a block; None where it is not run."""
    if mark.startswith("not run: "):
        return None
    words = dict(re.findall(r"(?:^|, )([a-z ]+): ([^,]+)", mark))
    machines = tuple(words.pop("on", "").split())
    user = words.pop("as", "")
    way = next((name for name in WAYS if name in words), "run")
    path = words.pop(way, "")
    place = f"{page}:{line}"
    if not machines or set(machines) - set(MACHINES) or words or (way == "run") != bool(user):
        raise NotUnderstood(f"{place}: <!-- {mark} --> is not understood; see {Path(__file__).name}")
    return Step(page, line, machines, user, way, path, textwrap.dedent("\n".join(block)) + "\n")


def _values(mark: str) -> list[str]:
    return [value.strip() for value in mark.partition(": ")[2].split(",")]


def _anchor(heading: str) -> str:
    """Return the anchor that a heading makes."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def set_in(text: str, lines: str) -> str:
    """Return a file of lines ``Name=value`` in which these have replaced those of their name, in any case."""
    for line in lines.splitlines():
        name = line.partition("=")[0]
        kept = [old for old in text.splitlines() if old.partition("=")[0].strip().lower() != name.lower()]
        text = "\n".join([*kept, line]) + "\n"
    return text
