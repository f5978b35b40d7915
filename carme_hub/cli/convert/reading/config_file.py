"""Read a jupyterhub_config.py: its settings in order, each with its line, and its value if that stands in the file.

Nothing runs. An ``if`` whose condition is known and a loop over a short list are followed; of other blocks the settings
are known, but not their values: ``Setting.block`` is then the whole statement, which can only be kept as it is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from carme_hub.errors import ConfigError

from .bounds import CannotBeRead
from .expressions import Values
from .values import Imported, LocalClass, Unknown, dotted, is_apart

_CHANGES = ("append", "extend", "update", "insert", "add", "prepend")


@dataclass(frozen=True)
class Setting:
    """One setting of the file.

    Attributes:
        section: the class, such as ``JupyterHub``. name: of the setting.
        value: what it has after this line, or ``Unknown``.
        node: the statement. target: where ``c.Section.name`` stands in it; None in the body of a class.
        block: the statement of the file's top that it stands in, if that was not followed; else None.
        top: the statement of the file's top that it stands in.
        followed: it stands in a block that was followed, so that its statement alone does not say when it is set.
    """

    section: str
    name: str
    value: Any
    node: ast.stmt
    target: ast.expr | None
    top: ast.stmt
    block: ast.stmt | None = None
    followed: bool = False

    @property
    def line(self) -> int:
        """The line of the statement."""
        return self.node.lineno

    @property
    def full_name(self) -> str:
        """The name as the file writes it."""
        return f"{self.section}.{self.name}"


@dataclass(frozen=True, slots=True)
class Remark:
    """Something besides a setting: a call, or a method of a class."""

    line: int
    what: str
    kind: str  # call, method, subconfig


@dataclass
class ConfigFile:
    """What stands in a file.

    Attributes:
        settings: in the order of the file. classes: those that the file defines. remarks: what else matters.
    """

    name: str
    text: str
    tree: ast.Module
    values: Values
    settings: list[Setting] = field(default_factory=list)
    classes: dict[str, LocalClass] = field(default_factory=dict)
    remarks: list[Remark] = field(default_factory=list)

    @property
    def lines(self) -> list[str]:
        """The lines of the text as Python counts them: a form feed, which Emacs likes, ends none."""
        return self.text.split("\n")

    def last(self, section: str, name: str) -> Setting | None:
        """Return the setting that is in force at the end of the file."""
        return next((s for s in reversed(self.settings) if (s.section, s.name) == (section, name)), None)

    def bases(self, section: str) -> list[str]:
        """Return a class's own name and those of its bases, without their modules, the most derived first."""
        found = [section]
        for name in found:
            local = self.classes.get(name)
            found += [b.rpartition(".")[2] for b in (local.bases if local else ()) if b.rpartition(".")[2] not in found]
        return found

    def line_of_text(self, value: object, line: int) -> int:
        """Return the line in which a text begins that the file has as a literal; ``line`` for any other value."""
        return self.values.texts.get(value, line) if isinstance(value, str) else line

    def lines_in_text(self, text: str, line: int) -> dict[int, int]:
        """Return for each line of a text that the file contains the line of the file, as far as it is found."""
        source = self.lines
        found: dict[int, int] = {}
        at = self.line_of_text(text, line) - 1
        for number, part in enumerate(text.split("\n"), 1):
            words = part.strip()
            place = next((n for n in range(at, len(source)) if words and words in source[n]), None)
            if place is not None:
                found[number], at = place + 1, place
        return found


def read_config_file(text: str, name: str) -> ConfigFile:
    """Return what stands in a jupyterhub_config.py.

    Raises:
        ConfigError: it is not Python.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ConfigError(
            f"{name}:{error.lineno}: this is not Python ({error.msg}). A template (Ansible, Puppet, Nix, Helm) has to "
            "be rendered first; convert the file that the hub reads."
        ) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{name}: this is not Python that can be read: {error}") from error
    reader = _Reader(ConfigFile(name, text, tree, Values()))
    for statement in tree.body:
        reader.top = statement
        reader.read(statement)
    return reader.file


class _Reader:
    """Goes through the statements; ``blocked`` while in a block that is not followed."""

    def __init__(self, file: ConfigFile) -> None:
        self.file, self.values = file, file.values
        self.top: ast.stmt = ast.Pass()
        self.blocked: Unknown | None = None
        self.followed = False

    def read(self, node: ast.stmt) -> None:
        handler = getattr(self, f"_{type(node).__name__.lower()}", None)
        if handler is not None:
            handler(node)
        elif not isinstance(node, ast.Pass | ast.Assert | ast.Global):
            self._unfollowed(node, Unknown(f"it stands in a {type(node).__name__.lower()} statement", node.lineno))

    # -- names ---------------------------------------------------------------------------------------------------------

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            self.values.names[name] = Imported(alias.name if alias.asname else name)

    def _importfrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            module = "." * node.level + (node.module or "")
            self.values.names[alias.asname or alias.name] = Imported(f"{module}.{alias.name}")

    def _functiondef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.values.names[node.name] = Unknown(f"{node.name} is a function", node.lineno)

    _asyncfunctiondef = _functiondef

    def _classdef(self, node: ast.ClassDef) -> None:
        found = (self.values.value(base) for base in node.bases)
        bases = tuple(base.name for base in found if isinstance(base, Imported | LocalClass))
        self.file.classes[node.name] = local = LocalClass(node.name, bases)
        self.values.names[node.name] = local
        for each in node.body:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                self.file.remarks.append(Remark(each.lineno, f"{node.name}.{each.name}", "method"))
            elif isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name):
                self._record(node.name, each.targets[0].id, self.values.value(each.value), each, None)

    # -- assignments ---------------------------------------------------------------------------------------------------

    def _assign(self, node: ast.Assign) -> None:
        if isinstance(node.value, ast.Call) and dotted(node.value.func) == "get_config":
            if isinstance(node.targets[0], ast.Name):
                self.values.config = node.targets[0].id
            return
        value = self.blocked or self.values.value(node.value)
        for target in node.targets:
            self._give(target, value, node)

    def _annassign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._give(node.target, self.blocked or self.values.value(node.value), node)

    def _augassign(self, node: ast.AugAssign) -> None:
        operation = ast.copy_location(ast.BinOp(_loaded(node.target), node.op, node.value), node)
        self._give(node.target, self.blocked or self.values.value(operation), node)

    def _delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            self._give(target, Unknown("it is deleted", node.lineno), node)

    def _give(self, target: ast.expr, value: Any, node: ast.stmt) -> None:
        try:
            self.values.check(value, node.lineno)
        except CannotBeRead as error:
            value = error.unknown
        parts = dotted(target).split(".")
        if len(parts) == 3 and parts[0] == self.values.config:
            self._record(parts[1], parts[2], value, node, target)
        elif isinstance(target, ast.Subscript):
            self._give_item(target, value, node)
        elif isinstance(target, ast.Tuple | ast.List):
            # Settings among them are shown as code that is left out (``kept_code``), for the statement is one.
            self.values.bind(target, value)
            for each in (each for each in ast.walk(target) if isinstance(each, ast.Subscript)):
                self._give(each.value, Unknown("a part of it is unpacked", node.lineno), node)
        elif not isinstance(target, ast.Attribute):
            self.values.bind(target, value)

    def _give_item(self, target: ast.Subscript, value: Any, node: ast.stmt) -> None:
        """Record ``owner[key] = value``: a new value of the owner."""
        owner, key = self.values.value(_loaded(target.value)), self.values.value(target.slice)
        if self.blocked is None and isinstance(owner, dict) and not isinstance(key, Unknown) and is_apart(value, owner):
            owner[key] = value
            self.values.parts[id(owner), key] = node.lineno
            new: Any = owner
        else:
            new = self.blocked or Unknown("a part of it is set by a computed name", node.lineno)
        self._give(target.value, new, node)

    def _record(self, section: str, name: str, value: Any, node: ast.stmt, target: ast.expr | None) -> None:
        block = self.top if self.blocked else None
        self.values.settings[section, name] = value
        self.file.settings.append(Setting(section, name, value, node, target, self.top, block, self.followed))

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Call):
            return
        call, name = node.value, dotted(node.value.func)
        owner, _, method = name.rpartition(".")
        if owner and method in _CHANGES and isinstance(call.func, ast.Attribute) and (call.args or call.keywords):
            self._change(call.func.value, method, call, node)
            return
        value = self.values.value(call.func)
        called = value.name if isinstance(value, Imported) else name or "a function"
        kind = "subconfig" if name == "load_subconfig" else "call"
        given = [dotted(arg) for arg in (*call.args, *(keyword.value for keyword in call.keywords))]
        if kind == "subconfig" or self.values.config in given:
            self.file.remarks.append(Remark(node.lineno, called, kind))

    def _change(self, owner: ast.expr, method: str, call: ast.Call, node: ast.stmt) -> None:
        """Record ``owner.append(…)`` and the like as a new value of the owner."""
        before, given = self.values.value(owner), self._given(call)
        parts = dotted(owner).split(".")
        if len(parts) == 3 and (parts[1], parts[2]) not in self.values.settings:
            before = {} if method == "update" else []  # traitlets changes the default in this way
        unknown = next((v for v in (self.blocked, before, given) if isinstance(v, Unknown)), None)
        new: Any = unknown
        if unknown is None and isinstance(before, dict) and method == "update" and isinstance(given, dict):
            new = {**before, **given}
        elif unknown is None and isinstance(before, list):
            more = given if method in ("extend", "prepend") and isinstance(given, list) else [given]
            at = self.values.value(call.args[0]) if method == "insert" else 0 if method == "prepend" else len(before)
            new = [*before[:at], *more, *before[at:]] if isinstance(at, int) else at
        elif unknown is None:
            new = Unknown(f"{dotted(owner)}.{method}() changes it", node.lineno)
        self._give(owner, new, node)

    def _given(self, call: ast.Call) -> Any:
        """Return what is added: the last argument, with those that have names in ``update(a=1)``."""
        found = self.values.value(call.args[-1]) if call.args else {}
        for keyword in call.keywords:
            if keyword.arg is None or not isinstance(found, dict):
                return Unknown("it is changed by a computed name", call.lineno)
            found = {**found, keyword.arg: self.values.value(keyword.value)}
        return found

    # -- blocks --------------------------------------------------------------------------------------------------------

    def _if(self, node: ast.If) -> None:
        test = self.blocked or self.values.condition(node.test)
        if isinstance(test, Unknown):
            self._unfollowed(node, Unknown(f"it depends on a condition ({test.reason})", node.lineno))
        else:
            self._follow(node.body if test else node.orelse)

    def _for(self, node: ast.For) -> None:
        items = self.blocked or self.values.value(node.iter)
        jumps = any(isinstance(each, ast.Break | ast.Continue | ast.Return) for each in ast.walk(node))
        if jumps or node.orelse or not isinstance(items, list | tuple | set | dict) or len(items) > 200:
            self._unfollowed(node, Unknown("it stands in a loop that is not followed", node.lineno))
            return
        for item in items:
            self.values.bind(node.target, item)
            self._follow(node.body)

    def _follow(self, body: list[ast.stmt]) -> None:
        before, self.followed = self.followed, True
        for statement in body:
            self.read(statement)
        self.followed = before

    def _unfollowed(self, node: ast.stmt, why: Unknown) -> None:
        """Record the settings of a block without their values; names that it sets have no known value either."""
        before, self.blocked = self.blocked, self.blocked or why
        for statement in _statements_in(node):
            if isinstance(
                statement, ast.Import | ast.ImportFrom | ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr
            ):
                self.read(statement)
        for name in _names_bound(node):
            if not isinstance(self.values.names.get(name), Imported):
                self.values.names[name] = why
        self.blocked = before


def _statements_in(node: ast.stmt) -> Iterator[ast.stmt]:
    """Yield the statements inside of one, in the order of the file, without those of functions and classes in it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(child, ast.stmt):
            yield child
        if not isinstance(child, ast.expr):
            yield from _statements_in(child)  # type: ignore[arg-type]


def _names_bound(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}


def _loaded(node: ast.expr) -> ast.expr:
    """Return an assignment's target as an expression."""
    return ast.copy_location(ast.parse(ast.unparse(node), mode="eval").body, node)
