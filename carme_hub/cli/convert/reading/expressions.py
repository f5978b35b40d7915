"""Values of Python expressions, computed from the syntax tree: nothing of the file runs.

Literals, f-strings, operators, comprehensions, names with known values, and the functions and methods listed here. All
else is ``Unknown``, with the reason and the line. Computing is bounded, so that no file makes it take long.
"""

from __future__ import annotations

import ast
import operator
import posixpath
import re
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from string import Formatter
from typing import Any

from .bounds import LONGEST, MOST_BITS, MOST_ITEMS, MOST_STEPS, CannotBeRead, check_made, check_width, count_parts
from .values import Imported, LocalClass, Unknown, dotted, is_plain, unknown_in

_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{f.__name__: f for f in (dict, list, tuple, set, str, int, float, bool, len, sorted, min, max, sum, abs, round)},
    "range": lambda *ends: list(range(*ends)[: MOST_ITEMS + 1]),
    "zip": lambda *them: list(zip(*them, strict=False)),
    "enumerate": lambda them, start=0: list(enumerate(them, start)),
    "os.path.join": posixpath.join,
    "os.path.dirname": posixpath.dirname,
    "os.path.basename": posixpath.basename,
    "textwrap.dedent": textwrap.dedent,
}
#: Expressions that make a new list or dict.
_MAKES = ast.List | ast.Tuple | ast.Set | ast.Dict | ast.ListComp | ast.SetComp | ast.DictComp | ast.BinOp | ast.Call
_METHODS: dict[type, frozenset[str]] = {
    str: frozenset(
        (
            *("format", "join", "strip", "lstrip", "rstrip", "split", "splitlines", "replace", "lower", "upper"),
            *("title", "capitalize", "startswith", "endswith", "removeprefix", "removesuffix"),
        )
    ),
    dict: frozenset(["items", "keys", "values", "get", "copy"]),
    list: frozenset(["copy", "index", "count"]),
    tuple: frozenset(["index", "count"]),
    set: frozenset(["copy", "union", "intersection", "difference"]),
}


@dataclass
class Values:
    """The values of names, the settings so far, and where their parts are written.

    Attributes:
        names: the values of names. settings: those of ``c.Class.name``. config: the name of the configuration object.
        parts: the line of each entry of a list, tuple or dict, by the id of that object and the index or key.
        texts: the line in which a text begins.
    """

    config: str = "c"
    names: dict[str, Any] = field(default_factory=dict)
    settings: dict[tuple[str, str], Any] = field(default_factory=dict)
    parts: dict[tuple[int, object], int] = field(default_factory=dict)
    texts: dict[str, int] = field(default_factory=dict)
    steps: int = 0
    _kept: list[object] = field(default_factory=list)  # an id is that of one object as long as the object lives

    def line_of(self, container: object, key: object, otherwise: int) -> int:
        """Return the line in which an entry of a container is written."""
        return self.parts.get((id(container), key), otherwise)

    def value(self, node: ast.expr) -> Any:
        """Return the value of an expression, or ``Unknown``."""
        try:
            return self.compute(node)
        except CannotBeRead as error:
            return error.unknown
        except Exception as error:  # noqa: BLE001 - what the file's own expression would raise
            return Unknown(f"it fails ({type(error).__name__}: {error})", node.lineno)

    def condition(self, node: ast.expr) -> Any:
        """Return the value of a condition, or ``Unknown``: whether a thing of a module is true shows when it runs."""
        value = self.value(node)
        if isinstance(value, Imported | LocalClass):
            return Unknown(f"{value.name} is known only when the file runs", node.lineno)
        return value

    def compute(self, node: ast.expr) -> Any:
        """Return the value of an expression; raise ``CannotBeRead``."""
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise CannotBeRead("the file computes too much", node.lineno)
        handler = getattr(self, f"_{type(node).__name__.lower()}", None)
        if handler is None:
            raise CannotBeRead(f"{_shown(node)} is computed", node.lineno)
        found = handler(node)
        if isinstance(found, int) and found.bit_length() > MOST_BITS:
            raise CannotBeRead("a number is too large", node.lineno)
        if isinstance(found, str | bytes | list | tuple) and len(found) > LONGEST:
            raise CannotBeRead("a text or a list is too long", node.lineno)
        if isinstance(node, _MAKES):
            self.check(found, node.lineno)
        return found

    def check(self, value: object, line: int) -> None:
        """Refuse a value with too many parts; counting them counts as computing."""
        if isinstance(value, list | tuple | set | dict):
            self.steps += count_parts(value, line) // 100

    # -- the kinds of expressions --------------------------------------------------------------------------------------

    def _constant(self, node: ast.Constant) -> Any:
        if isinstance(node.value, str):
            self.texts.setdefault(node.value, node.lineno)
        return node.value

    def _joinedstr(self, node: ast.JoinedStr) -> str:
        found = ""
        for part in node.values:
            found += str(self.compute(part))
            check_made("", [found], node.lineno)
        return found

    def _formattedvalue(self, node: ast.FormattedValue) -> str:
        value = self._plain(node.value)
        conversions: dict[int, Callable[[Any], Any]] = {-1: lambda v: v, 115: str, 114: repr, 97: ascii}
        check_made("", [value], node.lineno)
        value = conversions[node.conversion](value)
        spec = str(self.compute(node.format_spec)) if node.format_spec else ""
        check_width(spec, node.lineno)
        return format(value, spec)

    def _name(self, node: ast.Name) -> Any:
        if node.id not in self.names:
            raise CannotBeRead(f"{node.id} is not a literal", node.lineno)
        value = self.names[node.id]
        if isinstance(value, Unknown):
            raise CannotBeRead(value.reason, node.lineno)
        return value

    def _attribute(self, node: ast.Attribute) -> Any:
        name = dotted(node)
        parts = name.split(".")
        if len(parts) == 3 and parts[0] == self.config:
            value = self.settings.get((parts[1], parts[2]), Unknown(f"{name} has no value here", node.lineno))
            if isinstance(value, Unknown):
                raise CannotBeRead(value.reason, node.lineno)
            return value
        if name.startswith(("os.environ", "sys.")):
            raise CannotBeRead(f"it depends on {name}", node.lineno)
        owner = self.compute(node.value)
        if isinstance(owner, Imported):
            return Imported(f"{owner.name}.{node.attr}")
        raise CannotBeRead(f"{_shown(node)} is computed", node.lineno)

    def _sequence(self, node: ast.List | ast.Tuple | ast.Set) -> list[Any]:
        found: list[Any] = []
        lines = []
        for each in node.elts:
            more = list(self._items(each.value)) if isinstance(each, ast.Starred) else [self.value(each)]
            found += more
            lines += [each.lineno] * len(more)
        self._kept.append(found)
        self._note(found, enumerate(lines))
        return found

    def _list(self, node: ast.List) -> list[Any]:
        return self._sequence(node)

    def _tuple(self, node: ast.Tuple) -> tuple[Any, ...]:
        found = self._sequence(node)
        self._note(done := tuple(found), ((n, self.line_of(found, n, node.lineno)) for n in range(len(found))))
        return done

    def _set(self, node: ast.Set) -> set[Any]:
        return set(self._sequence(node))

    def _dict(self, node: ast.Dict) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                more = self._known(value)
                found.update(more)
                self._note(found, ((name, self.line_of(more, name, value.lineno)) for name in more))
            else:
                name = self._known(key)
                # One entry that cannot be read leaves the others readable.
                found[name] = self.value(value)
                self._note(found, [(name, key.lineno)])
        return found

    def _binop(self, node: ast.BinOp) -> Any:
        left = self._known(node.left)
        right = self._plain(node.right) if isinstance(left, str) else self._known(node.right)
        if isinstance(node.op, ast.Mult) and isinstance(left, int | float) and isinstance(right, int | float):
            return left * right  # of a text or a list it would make one as long as the memory
        if type(node.op) not in _OPERATORS or (isinstance(node.op, ast.Mod) and not isinstance(left, int | str)):
            raise CannotBeRead(f"{_shown(node)} is computed", node.lineno)
        if isinstance(node.op, ast.Mod) and isinstance(left, str):
            for spec in re.findall(r"%(?:\([^)]*\))?([^%a-zA-Z]*)", left):
                check_width(spec, node.lineno)
            check_made(left, [right], node.lineno)
        return _OPERATORS[type(node.op)](left, right)

    def _unaryop(self, node: ast.UnaryOp) -> Any:
        value = self._condition(node.operand)
        operators: dict[type[ast.unaryop], Callable[[Any], Any]] = {
            ast.Not: operator.not_,
            ast.USub: operator.neg,
            ast.UAdd: operator.pos,
        }
        if type(node.op) not in operators:
            raise CannotBeRead(f"{_shown(node)} is computed", node.lineno)
        return operators[type(node.op)](value)

    def _boolop(self, node: ast.BoolOp) -> Any:
        for each in node.values[:-1]:
            value = self._condition(each)
            if bool(value) is isinstance(node.op, ast.Or):
                return value
        return self._known(node.values[-1])

    def _compare(self, node: ast.Compare) -> bool:
        left = self._plain(node.left)
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = self._plain(right_node)
            if not _OPERATORS[type(op)](left, right):
                return False
            left = right
        return True

    def _ifexp(self, node: ast.IfExp) -> Any:
        return self.compute(node.body if self._condition(node.test) else node.orelse)

    def _subscript(self, node: ast.Subscript) -> Any:
        if dotted(node.value) == "os.environ":
            raise CannotBeRead("it depends on os.environ", node.lineno)
        value = self._known(node.value)
        if isinstance(node.slice, ast.Slice):
            ends = (node.slice.lower, node.slice.upper, node.slice.step)
            return value[slice(*(None if end is None else self._known(end) for end in ends))]
        found = value[self._known(node.slice)]
        if isinstance(found, Unknown):
            raise CannotBeRead(found.reason, node.lineno)
        return found

    def _call(self, node: ast.Call) -> Any:
        name = dotted(node.func)
        if name.startswith(("os.environ", "os.getenv")) or name in ("getenv", "environ.get"):
            raise CannotBeRead("it depends on os.environ", node.lineno)
        if any(keyword.arg is None for keyword in node.keywords) and name != "dict":
            raise CannotBeRead(f"it calls {name or _shown(node.func)}()", node.lineno)
        if name in _FUNCTIONS and name.partition(".")[0] not in self._defined():
            return self._called(_FUNCTIONS[name], node)
        if isinstance(node.func, ast.Attribute):
            if not name.startswith(f"{self.config}."):
                owner = self.value(node.func.value)
            else:
                owner = self._known(node.func.value)
            allowed = _METHODS.get(type(owner), frozenset())
            if node.func.attr == "format" and isinstance(owner, str):
                for _, name_in_it, spec, _ in Formatter().parse(owner):
                    check_width(spec or "", node.lineno)
                    if "." in (name_in_it or ""):  # an attribute, from which one gets anywhere
                        raise CannotBeRead("a text is formatted with an attribute", node.lineno)
            if node.func.attr in allowed:
                return self._called(getattr(owner, node.func.attr), node)
        raise CannotBeRead(f"it calls {name or _shown(node.func)}()", node.lineno)

    def _defined(self) -> set[str]:
        """Return names that the file gives a meaning of its own, so that they are not the builtin functions."""
        return {name for name, value in self.names.items() if value != Imported(name)}

    def _called(self, function: Callable[..., Any], node: ast.Call) -> Any:
        args: list[Any] = []
        for each in node.args:
            args += list(self._items(each.value)) if isinstance(each, ast.Starred) else [self._known(each)]
        named: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for keyword in node.keywords:
            more = {keyword.arg: self.value(keyword.value)} if keyword.arg else self._known(keyword.value)
            named.update(more)
            lines.update(dict.fromkeys(more, keyword.value.lineno))
        values = [*args, *named.values()]
        if function not in (dict, list) and (bad := unknown_in(values)) is not None:
            raise CannotBeRead(bad.reason, bad.line)
        owner = getattr(function, "__self__", None)
        if function not in (dict, list, tuple, set) and not isinstance(owner, dict | list) and not is_plain(values):
            raise CannotBeRead(f"{_shown(node)} is known only when the file runs", node.lineno)
        check_made(owner, values, node.lineno)
        found = function(*args, **named)
        if function is dict:
            self._note(found, lines.items())
        return list(found) if type(found).__name__.startswith("dict_") else found

    # -- comprehensions ------------------------------------------------------------------------------------------------

    def _listcomp(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp) -> list[Any]:
        return [self.compute(node.elt) for _ in self._rounds(node.generators)]

    _generatorexp = _listcomp

    def _setcomp(self, node: ast.SetComp) -> set[Any]:
        return set(self._listcomp(node))

    def _dictcomp(self, node: ast.DictComp) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for _ in self._rounds(node.generators):
            key = self._known(node.key)
            found[key] = self.compute(node.value)
            self._note(found, [(key, node.lineno)])
        return found

    def _rounds(self, generators: list[ast.comprehension]) -> Iterable[None]:
        before = dict(self.names)
        try:
            yield from self._nested(generators)
        finally:
            self.names = before

    def _nested(self, generators: list[ast.comprehension]) -> Iterable[None]:
        if not generators:
            yield None
            return
        first, *rest = generators
        for item in self._items(first.iter):
            self.bind(first.target, item)
            if all(self._condition(condition) for condition in first.ifs):
                yield from self._nested(rest)

    # -- shared --------------------------------------------------------------------------------------------------------

    def bind(self, target: ast.expr, value: Any) -> None:
        """Give the names of an assignment's target their values."""
        if isinstance(target, ast.Name):
            self.names[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            unknown = isinstance(value, Unknown) or not isinstance(value, list | tuple)
            parts = [value] * len(target.elts) if unknown else list(value)
            if unknown and not isinstance(value, Unknown):
                parts = [Unknown("it is unpacked", target.lineno)] * len(target.elts)
            for each, part in zip(target.elts, parts, strict=False):
                self.bind(each, part)

    def _items(self, node: ast.expr) -> list[Any]:
        found = self._known(node)
        if not isinstance(found, list | tuple | set | dict | str) or len(found) > MOST_ITEMS:
            raise CannotBeRead(f"{_shown(node)} is not a short list", node.lineno)
        return list(found)

    def _known(self, node: ast.expr) -> Any:
        """Return a value that does not only partly stand in the file."""
        value = self.compute(node)
        if isinstance(value, Unknown):
            raise CannotBeRead(value.reason, value.line)
        return value

    def _condition(self, node: ast.expr) -> Any:
        """Return a value of which it is known whether it is true."""
        value = self._known(node)
        if isinstance(value, Imported | LocalClass):
            raise CannotBeRead(f"{value.name} is known only when the file runs", node.lineno)
        return value

    def _plain(self, node: ast.expr) -> Any:
        """Return a value that is known in all its parts."""
        value = self._known(node)
        if not is_plain(value):
            bad = unknown_in(value) or Unknown(f"{_shown(node)} is known only when the file runs", node.lineno)
            raise CannotBeRead(bad.reason, bad.line)
        return value

    def _note(self, container: object, lines: Iterable[tuple[object, int]]) -> None:
        self._kept.append(container)
        self.parts.update({(id(container), key): line for key, line in lines})


def _shown(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 40 else f"{text[:37]}…"
