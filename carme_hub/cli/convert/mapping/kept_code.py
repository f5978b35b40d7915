"""Code of the old file that the new file has, too: settings as they are written, and what they need of the file.

A statement of the file's top stays whole, with its comment. Inside it, settings with another name get that name, and
settings that are left out become ``pass``. Statements that define a name which kept code uses come with it.
"""

from __future__ import annotations

import ast
import builtins
from collections import defaultdict
from collections.abc import Iterable

from carme_hub.cli.convert.reading.config_file import ConfigFile, Setting
from carme_hub.cli.convert.reading.values import dotted, unknown_in
from carme_hub.cli.convert.site import KeptCode

#: Packages that the new hub does not have.
OLD_PACKAGES = ("batchspawner", "wrapspawner", "jupyterhub_moss")
_BUILTIN = {*dir(builtins), "get_config", "__file__"}


class CodeOfSettings:
    """Collects what becomes of each setting, and gives the code that is kept."""

    def __init__(self, file: ConfigFile) -> None:
        self.file = file
        self._lines = file.text.splitlines(keepends=True)
        self._new_names: dict[int, str] = {}
        self._kept: dict[int, ast.stmt] = {}
        self._followed: list[Setting] = []
        self._settings: dict[int, list[Setting]] = defaultdict(list)
        for setting in file.settings:
            self._settings[id(setting.top)].append(setting)
        self._binders: dict[str, list[ast.stmt]] = defaultdict(list)
        for statement in file.tree.body:
            for name in _bound(statement):
                self._binders[name].append(statement)

    def keep(self, setting: Setting, new_name: str = "") -> bool:
        """Keep a setting, under another name if one is given; return False where it needs an old package."""
        if setting.target is None:
            return False
        needed = self._needed([setting.node if setting.followed else setting.top])
        if any(_is_old(statement) for statement in needed):
            return False
        self._new_names[id(setting.target)] = new_name or dotted(setting.target)
        if setting.followed:
            self._followed.append(setting)
            if unknown_in(setting.value) is None:
                return True  # its value is written, and needs no code
        else:
            self._kept[id(setting.top)] = setting.top
        self._kept.update((id(statement), statement) for statement in needed)
        return True

    def code(self) -> list[KeptCode]:
        """Return the kept code in the order of the file."""
        found = [KeptCode(s.lineno, s.end_lineno or s.lineno, self._text(s)) for s in self._kept.values()]
        for setting in self._followed:
            if id(setting.top) in self._kept and not isinstance(setting.top, ast.If | ast.For):
                continue
            found.append(KeptCode(setting.line, setting.node.end_lineno or setting.line, self._line_of(setting)))
        return sorted(found, key=lambda code: code.line)

    def source(self, node: ast.stmt) -> str:
        """Return a statement as the file has it."""
        return "".join(self._lines[node.lineno - 1 : node.end_lineno]).rstrip()

    # -- texts ---------------------------------------------------------------------------------------------------------

    def _line_of(self, setting: Setting) -> str:
        name = self._new_names[id(setting.target)]
        if unknown_in(setting.value) is None:
            return f"{name} = {setting.value!r}"
        return ast.unparse(setting.node).replace(f"{self.file.values.config}.{setting.full_name}", name, 1)

    def _text(self, statement: ast.stmt) -> str:
        first, last = statement.lineno, statement.end_lineno or statement.lineno
        edits: list[tuple[ast.AST, str]] = []
        for setting in self._settings[id(statement)]:
            if setting.target is not None and id(setting.target) in self._new_names:
                edits.append((setting.target, self._new_names[id(setting.target)]))
            elif setting.node is not statement:
                edits.append((setting.node, f"pass  # carme-hub convert: {setting.full_name} is left out"))
        lines = [line.encode() for line in self._lines[first - 1 : last]]
        for node, new in sorted(edits, key=lambda edit: (-edit[0].lineno, -edit[0].col_offset)):  # type: ignore[attr-defined]
            begin, end = node.lineno - first, (node.end_lineno or node.lineno) - first  # type: ignore[attr-defined]
            head, tail = lines[begin][: node.col_offset], lines[end][node.end_col_offset :]  # type: ignore[attr-defined]
            lines[begin : end + 1] = [head + new.encode() + tail]
        return self._comment_above(first) + b"".join(lines).decode().rstrip()

    def _comment_above(self, line: int) -> str:
        begin = line - 1
        while begin > 0 and self._lines[begin - 1].startswith("#") and self._lines[begin - 1].strip("#-= \n"):
            begin -= 1
        if begin == 0:
            return ""  # it is about the whole file
        return "".join(self._lines[begin : line - 1])

    # -- what it needs -------------------------------------------------------------------------------------------------

    def _needed(self, statements: Iterable[ast.stmt]) -> list[ast.stmt]:
        """Return the statements that define the names which these use, and those that these need in turn."""
        found: dict[int, ast.stmt] = {}
        ahead = list(statements)
        seen: set[str] = {self.file.values.config, *_BUILTIN}
        while ahead:
            for name in _used(ahead.pop()) - seen:
                seen.add(name)
                for statement in self._binders.get(name, ()):
                    if id(statement) not in found:
                        found[id(statement)] = statement
                        ahead.append(statement)
        return list(found.values())


def _used(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _bound(statement: ast.stmt) -> set[str]:
    """Return the names that a statement of the file's top gives a value, or changes."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    found: set[str] = set()
    for each in ast.walk(statement):
        if isinstance(each, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name.partition(".")[0] for alias in each.names}
        elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            found.add(each.id)
        elif isinstance(each, ast.Subscript) and isinstance(each.ctx, ast.Store) and isinstance(each.value, ast.Name):
            found.add(each.value.id)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        owner, _, method = dotted(statement.value.func).partition(".")
        if method in ("append", "extend", "update", "insert", "add"):
            found.add(owner)
    return found


def _is_old(statement: ast.stmt) -> bool:
    names: list[str] = []
    for each in ast.walk(statement):
        if isinstance(each, ast.Import):
            names += [alias.name for alias in each.names]
        elif isinstance(each, ast.ImportFrom):
            names.append(each.module or "")
    return any(name.partition(".")[0] in OLD_PACKAGES for name in names)
