"""Read an interactive app of Open OnDemand: form.yml, submit.yml.erb and the scripts in template/. No Ruby runs.

An expression of ERB (``<%= … %>``) is kept as text, with the attribute of the form that it takes its value from. Code
of ERB (``<% … %>``) is left out, except that names which are set in it lead to attributes, and ``case``/``when`` with
lists of options of sbatch are read. https://osc.github.io/ood-documentation/latest/how-tos/app-development/interactive.html
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from carme_hub.errors import ConfigError

from .shell import SHORT, Option, read_options

_ERB = re.compile(r"<%(=?)-?((?:(?!<%).)*?)-?%>", re.DOTALL)
#: The largest file of an app that is read, in bytes.
_LARGEST = 1_000_000
_MARK = re.compile(r"ERB(\d+)BRE")
_SCRIPT_KEYS = (
    "accounting_id|queue_name|reservation_id|gpus_per_node|wall_time|qos|native|email_on_started|job_name|email"
)


@dataclass(frozen=True, slots=True)
class FormOption:
    """One choice of a list: what it shows, its value, and its ``data-…`` entries."""

    label: str
    value: str
    line: int
    data: dict[str, Any] = field(default_factory=dict)


@dataclass
class Attribute:
    """A field of the form.

    Attributes:
        value: what it has at first, "" if nothing or if ERB computes it. fixed: it is no field, but a value.
        least, most: of a number; None where the form does not say it.
    """

    name: str
    line: int
    label: str = ""
    value: str = ""
    fixed: bool = False
    least: float | None = None
    most: float | None = None
    options: list[FormOption] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SubmitOption:
    """An option with which the job is submitted; ``text`` is its value, ``attributes`` those that it takes it from."""

    name: str
    text: str
    line: int
    attributes: tuple[str, ...]


@dataclass
class App:
    """What stands in the files of an app.

    Attributes:
        form_file, submit_file: their names, in findings. clusters: as form.yml names them.
        cases: options of sbatch by a value of an attribute, of a ``case`` in submit.yml.erb.
        scripts: name and text of the scripts, in the order in which they run.
    """

    form_file: str
    submit_file: str = ""
    title: str = ""
    clusters: list[str] = field(default_factory=list)
    form: list[str] = field(default_factory=list)
    attributes: dict[str, Attribute] = field(default_factory=dict)
    submit: list[SubmitOption] = field(default_factory=list)
    cases: dict[str, list[Option]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    scripts: list[tuple[str, str]] = field(default_factory=list)

    def attributes_in(self, code: str) -> tuple[str, ...]:
        """Return the attributes that a piece of Ruby uses, through names that were set before, too."""
        found: list[str] = []
        ahead = re.findall(r"[A-Za-z_]\w*", re.sub(r"\"[^\"#]*\"|'[^']*'", "", code))
        for _ in range(200):
            if not ahead:
                break
            name = ahead.pop(0)
            if name in self.attributes or name in self.form:
                found.append(name)
            elif name in self.aliases:
                ahead += re.findall(r"[A-Za-z_]\w*", self.aliases[name])
        return tuple(dict.fromkeys(found))


def is_app(path: Path) -> bool:
    """Whether a path is an app's folder, or its form."""
    return path.name.startswith("form.yml") or (path.is_dir() and _form_of(path) is not None)


def _form_of(folder: Path) -> Path | None:
    return next((folder / name for name in ("form.yml.erb", "form.yml") if (folder / name).is_file()), None)


def read_app(path: Path) -> App:
    """Return what stands in an app's folder, or in the folder of its form.

    Raises:
        ConfigError: the form is no YAML, or a file is too large.
    """
    form = path if path.is_file() else _form_of(path)
    if form is None:
        raise ConfigError(f"{path} has no form.yml and no form.yml.erb")
    folder = form.parent
    app = App(form.name)
    _read_form(_text_of(form), app)
    for name in ("submit.yml.erb", "submit.yml"):
        if (folder / name).is_file():
            app.submit_file = name
            _read_submit(_text_of(folder / name), app)
            break
    for name in ("before.sh.erb", "before.sh", "script.sh.erb", "script.sh"):
        if (folder / "template" / name).is_file():
            app.scripts.append((f"template/{name}", _text_of(folder / "template" / name)))
    return app


def _text_of(file: Path) -> str:
    if file.stat().st_size > _LARGEST:
        raise ConfigError(f"{file} is too large for an app of Open OnDemand")
    return file.read_text("utf-8", "replace")


def _without_erb(text: str, expressions: list[str]) -> str:
    """Return YAML with a mark for each expression, and without code, on the same lines."""

    def replace(match: re.Match[str]) -> str:
        lines = "\n" * match[0].count("\n")
        if not match[1]:
            return lines
        expressions.append(match[2].strip())
        return f"ERB{len(expressions) - 1}BRE{lines}"

    return _ERB.sub(replace, text)


# -- the form ----------------------------------------------------------------------------------------------------------


def _read_form(text: str, app: App) -> None:
    plain = _without_erb(text, [])
    try:
        root = yaml.compose(plain, Loader=yaml.SafeLoader)
    except RecursionError as error:
        raise ConfigError(f"{app.form_file}: this is no form of Open OnDemand: it is too deep") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{app.form_file}:{mark.line + 1}" if mark is not None else app.form_file
        raise ConfigError(f"{where}: this is no YAML that can be read: {getattr(error, 'problem', error)}") from error
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{app.form_file}: this is no form of Open OnDemand: it has no keys")
    for key, node in root.value:
        if key.value == "title":
            app.title = _scalar(node)
        elif key.value == "cluster":
            parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
            app.clusters = [name for name in map(_scalar, parts) if name and name != "*"]
        elif key.value == "form" and isinstance(node, yaml.SequenceNode):
            app.form = [_scalar(part) for part in node.value]
        elif key.value == "attributes" and isinstance(node, yaml.MappingNode):
            for name, about in node.value:
                app.attributes[name.value] = _attribute(name.value, name.start_mark.line + 1, about)


def _scalar(node: yaml.Node) -> str:
    """Return a plain value as text; "" for null, a list, or what ERB computes."""
    if not isinstance(node, yaml.ScalarNode) or node.tag.endswith(":null") or _MARK.search(node.value):
        return ""
    return str(node.value)


def _attribute(name: str, line: int, node: yaml.Node) -> Attribute:
    found = Attribute(name, line)
    if not isinstance(node, yaml.MappingNode):
        found.value, found.fixed = _scalar(node), True
        return found
    for key, about in node.value:
        if key.value == "label":
            found.label = _scalar(about)
        elif key.value == "value":
            found.value = _scalar(about)
        elif key.value in ("min", "max"):
            number = _float(_scalar(about))
            found.least, found.most = (number, found.most) if key.value == "min" else (found.least, number)
        elif key.value == "options" and isinstance(about, yaml.SequenceNode):
            found.options = [option for part in about.value if (option := _form_option(part)) is not None]
    return found


def _form_option(node: yaml.Node) -> FormOption | None:
    line = node.start_mark.line + 1
    if isinstance(node, yaml.ScalarNode):
        return FormOption(text, text, line) if (text := _scalar(node)) else None
    if not isinstance(node, yaml.SequenceNode):
        return None
    words = [_scalar(part) for part in node.value if isinstance(part, yaml.ScalarNode)]
    data: dict[str, Any] = {}
    for part in node.value:
        if isinstance(part, yaml.MappingNode):
            data.update({key.value: _scalar(value) for key, value in part.value})
    if not words or not words[0]:
        return None
    return FormOption(words[0], words[1] if len(words) > 1 else words[0], line, data)


def _float(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else None


# -- the submission ----------------------------------------------------------------------------------------------------


def _read_submit(text: str, app: App) -> None:
    for code in _ERB.finditer(text):
        if not code[1]:
            _read_code(code[2], app)
    expressions: list[str] = []
    words: list[tuple[str, int]] = []
    for number, line in enumerate(_without_erb(text, expressions).split("\n"), 1):
        line = re.sub(r"^\s*#.*|\s#.*$", "", line)
        if match := re.match(rf"\s+({_SCRIPT_KEYS}):\s*(.*)", line):
            if match[1] == "native":
                words += [(word, number) for word in re.findall(r"[^\s\[\],\"']+", match[2])]
            elif match[2]:
                _add(app, match[1], match[2].strip("\"' "), number, expressions)
        elif match := re.match(r"\s*-\s+(?:\"(.*)\"|'(.*)'|(.*?))\s*$", line):
            entry = next((part for part in match.groups() if part), "")
            # "-N 1" is one entry of two words; "--name=a b" is one word.
            words += [(word, number) for word in (entry.split() if re.match(r"-\w ", entry) else [entry])]
    while words:
        word, number = words.pop(0)
        if not word.startswith("-"):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("--"):
            name, value = SHORT.get(word[1], word[1]), word[2:]
            equals = value
        if not equals and words and not words[0][0].startswith("-"):
            value = words.pop(0)[0]
        _add(app, name, value, number, expressions)


def _add(app: App, name: str, text: str, line: int, expressions: list[str]) -> None:
    used = [expressions[int(number)] for number in _MARK.findall(text)]
    attributes = tuple(dict.fromkeys(each for code in used for each in app.attributes_in(code)))
    # The arithmetic of an expression says the unit: mem * 1024.
    shown = _MARK.sub(lambda match: f"<%= {expressions[int(match[1])]} %>", text)
    app.submit.append(SubmitOption(name, shown, line, attributes))


def _read_code(code: str, app: App) -> None:
    for name, value in re.findall(r"^\s*([a-z_]\w*)\s*=(?![=~])\s*(.+)$", code, re.MULTILINE):
        app.aliases.setdefault(name, value)
    for values, body in re.findall(r"^\s*when\s+(.+)\n((?:(?!\s*(?:when|else|end)\b).*\n?)*)", code, re.MULTILINE):
        options = read_options(" ".join(re.findall(r"[\"']([^\"'#{}]*)[\"']", body)), 0)
        for value in re.findall(r"[\"']([^\"']+)[\"']", values):
            app.cases[value] = options
