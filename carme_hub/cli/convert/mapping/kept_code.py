"""Code of the old file that the new file has, too: settings as they are written, and what they need of the file.

A statement of the file's top stays whole, with its comment. Inside it, settings with another name get that name, and
settings that are left out become ``pass``. Statements that define a name which kept code uses come with it.
"""

from __future__ import annotations

import ast
import builtins
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise

from carme_hub.cli.convert.reading.config_file import ConfigFile, Setting
from carme_hub.cli.convert.reading.values import dotted, is_plain
from carme_hub.cli.convert.site import KeptCode

#: Packages that the new hub does not have.
OLD_PACKAGES = ("batchspawner", "wrapspawner", "jupyterhub_moss")
_BUILTIN = {*dir(builtins), "get_config", "__file__"}
_CHANGES = ("append", "extend", "update", "insert", "add")
#: Line and column of the beginning and of the end, and what stands there instead.
Edit = tuple[int, int, int, int, str]


class CodeOfSettings:
    """Collects what becomes of each setting, and gives the code that is kept."""

    def __init__(self, file: ConfigFile) -> None:
        self.file = file
        self._lines = [f"{line}\n" for line in file.lines]
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
            if is_plain(setting.value):
                return True  # its value is written, and needs no code
        else:
            self._kept[id(setting.top)] = setting.top
        self._kept.update((id(statement), statement) for statement in needed)
        return True

    def code(self) -> list[KeptCode]:
        """Return the kept code in the order of the file."""
        found = [KeptCode(_first_line(s), s.end_lineno or s.lineno, self._text(s)) for s in self._kept.values()]
        for setting in self._followed:
            if id(setting.top) not in self._kept:
                found.append(KeptCode(setting.line, setting.node.end_lineno or setting.line, self._line_of(setting)))
        return sorted(found, key=lambda code: code.line)

    def left_out(self) -> list[ast.stmt]:
        """Return the statements of the file's top that do something besides settings, and are not kept."""
        found: list[ast.stmt] = []
        for node in self.file.tree.body:
            if id(node) in self._settings and id(node) not in self._kept:
                found += self._acting_in(node, {id(setting.node) for setting in self._settings[id(node)]})
            elif id(node) not in self._kept and self._acts(node):
                found.append(node)
        return found

    def _acting_in(self, block: ast.AST, settings: set[int]) -> Iterator[ast.stmt]:
        """Yield the statements of a block that do something besides its settings."""
        for child in ast.iter_child_nodes(block):
            if isinstance(child, ast.expr | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            if hasattr(child, "body") or not isinstance(child, ast.stmt):
                yield from self._acting_in(child, settings)
            elif id(child) not in settings and self._acts(child):
                yield child

    def _acts(self, node: ast.AST) -> bool:
        """Whether a statement changes something outside of the file's own names, as far as it shows."""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return False
        if isinstance(node, ast.Expr):
            owner, _, method = dotted(node.value.func).partition(".") if isinstance(node.value, ast.Call) else ("",) * 3
            of_a_name = method in _CHANGES and owner in self._binders and owner != self.file.values.config
            return isinstance(node.value, ast.Call) and not of_a_name
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete):
            targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else [node.target]
            parts = [part for target in targets for part in _parts(target)]
            return any(self._is_outside(part) for part in parts) or self._is_given_away(getattr(node, "value", None))
        return any(self._acts(child) for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr))

    def _is_outside(self, target: ast.expr) -> bool:
        """Whether a target is a part of something else than the file's names: ``a.b``, ``a.b[c]``, ``c["A"]["b"]``."""
        owner = _owner(target)
        is_config = isinstance(owner, ast.Name) and owner.id == self.file.values.config
        return isinstance(owner, ast.Attribute) or (is_config and owner is not target)

    def _is_given_away(self, value: ast.expr | None) -> bool:
        """Whether a function gets the configuration object, and may set anything."""
        calls = [each for each in ast.walk(value) if isinstance(each, ast.Call)] if value is not None else []
        given = [each for call in calls for each in (*call.args, *(keyword.value for keyword in call.keywords))]
        return any(isinstance(each, ast.Name) and each.id == self.file.values.config for each in given)

    def source(self, node: ast.stmt) -> str:
        """Return a statement as the file has it, without its neighbours on the same lines."""
        first, last = _first_line(node), node.end_lineno or node.lineno
        return self._edited(first, last, self._neighbours(node)).rstrip()

    # -- texts ---------------------------------------------------------------------------------------------------------

    def _line_of(self, setting: Setting) -> str:
        name = self._new_names[id(setting.target)]
        if is_plain(setting.value):
            return f"{name} = {setting.value!r}"
        return ast.unparse(setting.node).replace(f"{self.file.values.config}.{setting.full_name}", name, 1)

    def _text(self, statement: ast.stmt) -> str:
        first, last = _first_line(statement), statement.end_lineno or statement.lineno
        edits = self._neighbours(statement)
        settings = self._settings[id(statement)]
        of_kept = {id(each.node) for each in settings if id(each.target) in self._new_names}
        for setting in settings:
            if setting.target is not None and id(setting.target) in self._new_names:
                edits.append((*_place(setting.target), self._new_names[id(setting.target)]))
            elif id(setting.node) in of_kept:
                edits += _out_of_chain(setting)
            elif setting.node is not statement:
                place = _place(setting.node)
                alone = self._is_last(setting.node)
                comment = f"  # carme-hub convert: {setting.full_name} is left out" if alone else ""
                edits.append((*place, f"pass{comment}"))
        return self._comment_above(first) + self._edited(first, last, edits).rstrip()

    def _edited(self, first: int, last: int, edits: Iterable[Edit]) -> str:
        """Return lines of the file with other texts in some places, which do not overlap."""
        lines = [line.encode() for line in self._lines[first - 1 : last]]
        for line, column, end_line, end_column, new in sorted(set(edits), reverse=True):
            begin, end = line - first, end_line - first
            lines[begin : end + 1] = [lines[begin][:column] + new.encode() + lines[end][end_column:]]
        return b"".join(lines).decode()

    def _neighbours(self, node: ast.stmt) -> list[Edit]:
        """Return the edits that take away what else stands on a statement's lines: ``a = 1; b = 2``."""
        line, column, end_line, end_column = _place(node)
        before = [(line, 0, line, column, "")] if _first_line(node) == line and node in self.file.tree.body else []
        if self._is_last(node):
            return before
        return [*before, (end_line, end_column, end_line, len(self._lines[end_line - 1].encode()), "\n")]

    def _is_last(self, node: ast.stmt) -> bool:
        """Whether at most a comment follows a statement on its last line."""
        _, _, line, column = _place(node)
        rest = self._lines[line - 1].encode()[column:].strip()
        return not rest or rest.startswith(b"#")

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
                # Of a name that the file does not bind, a module may be the one that gives it all of its names.
                for statement in self._binders.get(name) or self._binders.get("*") or []:
                    if id(statement) not in found:
                        found[id(statement)] = statement
                        ahead.append(statement)
        return list(found.values())


def _first_line(node: ast.stmt) -> int:
    """Return the line in which a statement begins, which is that of its first decorator."""
    return min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])


def _place(node: ast.stmt | ast.expr) -> tuple[int, int, int, int]:
    """Return where a node begins and ends: line and column, in bytes, as ``ast`` counts them."""
    return node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or 0


def _out_of_chain(setting: Setting) -> list[Edit]:
    """Return the edit that takes a setting out of ``c.A.x = c.B.y = 1``."""
    node = setting.node
    parts = [*node.targets, node.value] if isinstance(node, ast.Assign) else []
    return [(*_place(one)[:2], *_place(after)[:2], "") for one, after in pairwise(parts) if one is setting.target]


def _owner(target: ast.expr) -> ast.expr:
    """Return ``a.b`` of the target ``a.b[c][d]``."""
    while isinstance(target, ast.Subscript):
        target = target.value
    return target


def _parts(target: ast.expr) -> list[ast.expr]:
    """Return ``a`` and ``b`` of the target ``a, *b``."""
    if isinstance(target, ast.Starred):
        return _parts(target.value)
    if isinstance(target, ast.Tuple | ast.List):
        return [part for each in target.elts for part in _parts(each)]
    return [target]


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
        if method in _CHANGES:
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
