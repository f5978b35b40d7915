"""Files of quotas and accounts: CSV with a line for each, JSON or YAML with a list ``quotas``. Errors name the line."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from carme_hub.cli.nodes.plan_file import line_of, read_yaml
from carme_hub.domain.quotas.exchange.rows import KEYS, BadRows, Row
from carme_hub.errors import ConfigError
from carme_hub.services.quotas.application.reports import safe

_SUFFIXES = (".csv", ".json", ".yaml", ".yml")
_LISTS = ("gpu_types", "users")
_FLAGS = {"true": True, "yes": True, "false": False, "no": False}
#: Keys whose value is a text, also if it looks like a number: an account may have the name 007.
_TEXTS = ("id", "account", "user", "group", "role", "window", "start", "end", "soft_qos", "time_limit")
#: How many problems are shown.
MOST_PROBLEMS = 20


def read_quota_file(file: Path) -> list[Row]:
    """Return the rows of a file.

    Raises:
        ConfigError: it cannot be read as a table.
    """
    if file.suffix.lower() not in _SUFFIXES:
        raise ConfigError(f"{file}: give a file whose name ends in one of {', '.join(_SUFFIXES)}")
    return _csv_rows(file) if file.suffix.lower() == ".csv" else _yaml_rows(file)


def _yaml_rows(file: Path) -> list[Row]:
    document, tree = read_yaml(file)
    found = document.get("quotas") if isinstance(document, dict) else None
    if not isinstance(found, list):
        raise ConfigError(f"{file}: there is no list named quotas in it")
    rows = []
    for number, entry in enumerate(found):
        where = f"quotas[{number}]"
        place = f"line {line_of(tree, where)}"
        if not isinstance(entry, dict):
            raise ConfigError(f"{file}, {place}: each entry has keys with values, such as account: physics")
        lines = {str(key): f"line {line_of(tree, f'{where}.{key}')}" for key in entry}
        rows.append(Row(place, {str(key): value for key, value in entry.items()}, lines))
    return rows


def _csv_rows(file: Path) -> list[Row]:
    try:
        text = file.read_text(encoding="utf-8-sig")  # spreadsheets begin with a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    first = text.partition("\n")[0]
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter=";" if ";" in first and "," not in first else ",", strict=True
    )
    rows, problems, line = [], [], 1
    header: list[str] | None = None
    try:
        for cells in reader:
            place, line = f"line {line}", reader.line_num + 1
            if not any(cell.strip() for cell in cells):
                continue
            if header is None:
                header = [cell.strip() for cell in cells]
                _check_header(file, place, header)
            elif len(cells) > len(header):
                problems.append(f"{place}: it has {len(cells)} cells, and the header has {len(header)}")
            else:
                try:
                    rows.append(Row(place, _values(zip(header, cells, strict=False))))
                except ConfigError as error:
                    problems.append(f"{place}: {error}")
    except csv.Error as error:
        raise ConfigError(f"{file}, line {reader.line_num} is not CSV: {error}") from error
    if header is None:
        raise ConfigError(f"{file} is empty; its first line names the columns")
    if problems:
        raise BadRows(problems)
    return rows


def _check_header(file: Path, place: str, header: Sequence[str]) -> None:
    """Refuse columns that are not known, or there twice; what a column is cannot be guessed."""
    if unknown := [name for name in header if name not in KEYS]:
        raise ConfigError(f"{file}, {place}: unknown columns: {', '.join(unknown)}. Known: {', '.join(KEYS)}.")
    if len(set(header)) < len(header):
        raise ConfigError(f"{file}, {place}: a column is there twice")


def _values(cells: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the values of a line; an empty cell says nothing."""
    return {key: _value(key, cell.strip()) for key, cell in cells if cell.strip()}


def _value(key: str, cell: str) -> Any:
    text = cell[1:] if cell.startswith("'") and safe(cell[1:]) == cell else cell
    if key in _LISTS:
        return [] if text == "none" else text.replace(",", " ").split()
    if key == "booking":
        try:
            return json.loads(text)
        except ValueError as error:
            raise ConfigError(f'booking: give JSON, such as {{"ahead": "14d"}}: {error}') from error
    if key in _TEXTS:
        return text
    if text.lower() in _FLAGS:
        return _FLAGS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


# -- writing ----------------------------------------------------------------------------------------------------------


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV, with the columns that some row has."""
    columns = [key for key in KEYS if any(key in row for row in rows)] or ["account"]
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerow(columns)
    writer.writerows([_cell(key, row.get(key)) for key in columns] for row in rows)
    return stream.getvalue()


def _cell(key: str, value: Any) -> Any:
    if value is None:
        return ""
    if key in _LISTS:
        return safe(" ".join(str(each) for each in value)) or ("none" if key == "gpu_types" else "")
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, int | float) else safe(value)


def problems_text(file: str, error: BadRows) -> str:
    """Return what is wrong in a file, a line for each."""
    shown = [f"{file}, {problem}" for problem in error.problems[:MOST_PROBLEMS]]
    more = len(error.problems) - len(shown)
    return "\n".join([*shown, *([f"and {more} more"] if more else [])])
