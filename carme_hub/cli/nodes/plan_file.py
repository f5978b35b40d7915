"""Read a plan from its YAML file, so that an error names the line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from carme_hub.domain.nodes.plan import Plan, parse_plan
from carme_hub.errors import ConfigError

_STEP = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


def read_plan(file: Path, zone: str) -> Plan:
    """Return the plan in a file.

    Args:
        zone: IANA zone of times without one.

    Raises:
        ConfigError: it cannot be read, or something in it is wrong; the message has the line.
    """
    document, tree = read_yaml(file)
    if not isinstance(document, dict):
        raise ConfigError(f"{file}: a plan has keys with values: title, groups, command, …")
    try:
        return parse_plan(document, zone)
    except ConfigError as error:
        where, _, _ = str(error).partition(": ")
        raise ConfigError(f"{file}, line {line_of(tree, where)}: {error}") from error


def read_yaml(file: Path) -> tuple[Any, Any]:
    """Return what a YAML file has (JSON is YAML, apart from tabs), and its nodes, which know their lines.

    Raises:
        ConfigError: it cannot be read, or a key is there twice; the message has the line.
    """
    try:
        text = file.read_text(encoding="utf-8")
        text = text.replace("\t", " ") if file.suffix == ".json" else text  # in JSON a tab is between things only
        tree = yaml.compose(text, yaml.SafeLoader)
        document = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{file}{where} is not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{file} is not YAML: {' '.join(str(error).split())}") from error
    except ValueError as error:  # a date that the calendar does not have
        raise ConfigError(f"{file}: a time in it cannot be: {error}") from error
    _check_keys(file, tree)
    return document, tree


def _check_keys(file: Path, node: Any) -> None:
    """Refuse a key that is there twice: YAML would take the last one, and nobody would see it."""
    if isinstance(node, yaml.SequenceNode):
        for each in node.value:
            _check_keys(file, each)
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            name = str(key.value)
            if name in seen:
                line = key.start_mark.line + 1
                raise ConfigError(f"{file}, line {line}: {name} is there already, in line {seen[name]}.")
            seen[name] = key.start_mark.line + 1
            _check_keys(file, value)


def line_of(tree: Any, where: str) -> int:
    """Return the line of a place such as ``groups[1].nodes``, or of the nearest around it that is there."""
    node, line = tree, tree.start_mark.line + 1
    for number, name in _STEP.findall(where):
        found = None
        if number and isinstance(node, yaml.SequenceNode) and int(number) < len(node.value):
            found = node.value[int(number)]
            line = found.start_mark.line + 1
        elif name and isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if str(key.value) == name:
                    found, line = value, key.start_mark.line + 1
        if found is None:
            break
        node = found
    return int(line)
