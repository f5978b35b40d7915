"""Settings as a support bundle shows them: what a reader needs, and no value that may be secret. Pure.

Values of classes that this project and JupyterHub define are shown, apart from those whose names are secret. Of classes
that a site brings, texts are not shown at all: nobody here knows what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from .redaction import REMOVED, Redactor, is_secret_name

#: Variables of an environment that are shown; others may hold anything.
SHOWN_VARIABLES = frozenset(
    {
        *("PATH", "HOME", "LANG", "LC_ALL", "TZ", "USER", "LOGNAME", "SHELL", "PWD", "TMPDIR", "VIRTUAL_ENV"),
        *("SLURM_CONF", "PYTHONPATH", "JUPYTERHUB_API_URL", "SUDO_USER", "CARME_NIGHTLY", "XDG_RUNTIME_DIR"),
    }
)
#: How deep values are shown, and how long.
_DEPTH, _ITEMS, _LENGTH = 12, 500, 4000


def environment(values: Mapping[str, str], redactor: Redactor) -> dict[str, str]:
    """Return an environment: every name, and the values of those that are known to be harmless."""
    return {
        name: redactor.text(value) if name in SHOWN_VARIABLES else _length(value)
        for name, value in sorted(values.items())
    }


def shown(name: str, value: Any, redactor: Redactor, *, known: bool = True, depth: int = 0) -> Any:
    """Return a setting's value as JSON without secrets.

    Args:
        name: of the setting, or of the key in it. known: whether its class is ours or JupyterHub's.
    """
    if value is None or isinstance(value, bool | int | float):
        return REMOVED if is_secret_name(name) and value not in (None, True, False) else value
    if is_secret_name(name) and not (isinstance(value, str) and not value):
        return REMOVED
    if isinstance(value, str):
        return redactor.text(value[:_LENGTH]) if known else _length(value)
    if isinstance(value, bytes):
        return f"[{len(value)} bytes]"
    if depth >= _DEPTH:
        return "[deeper]"
    if isinstance(value, Mapping):
        if _is_environment(name):
            return environment({str(key): str(each) for key, each in value.items()}, redactor)
        items = list(value.items())[:_ITEMS]
        return {
            redactor.text(str(key)): shown(str(key), each, redactor, known=known, depth=depth + 1)
            for key, each in items
        }
    if isinstance(value, list | tuple | set | frozenset):
        every = sorted(value, key=str) if isinstance(value, set | frozenset) else list(value)
        return _sequence(name, every[:_ITEMS], redactor, known=known, depth=depth)
    named = getattr(value, "__qualname__", "") or type(value).__qualname__
    return f"[{named}]"


def _sequence(name: str, every: list[Any], redactor: Redactor, *, known: bool, depth: int) -> list[Any]:
    """Return a list; of an argv the value after an option with a secret name is removed as well."""
    found: list[Any] = []
    secret_follows = False
    for each in every:
        if secret_follows and isinstance(each, str):
            found.append(REMOVED)
        else:
            found.append(shown(name, each, redactor, known=known, depth=depth + 1))
        secret_follows = _is_secret_option(each)
    return found


def secret_values(name: str, value: Any) -> list[str | bytes]:
    """Return the values in a setting that are not shown: they are removed wherever else they stand.

    These are the values of secret names, of variables, and of options with secret names.
    """
    if isinstance(value, Mapping):
        if _is_environment(name):
            hidden = (each for key, each in value.items() if key not in SHOWN_VARIABLES)
            return [each for each in hidden if isinstance(each, str | bytes)]
        return [each for key, inner in value.items() for each in secret_values(str(key), inner)]
    if isinstance(value, list | tuple | set | frozenset):
        every = list(value)
        found = [each for inner in every for each in secret_values(name, inner)]
        return found + [
            after for before, after in pairwise(every) if _is_secret_option(before) and isinstance(after, str | bytes)
        ]
    return [value] if isinstance(value, str | bytes) and is_secret_name(name) else []


def _is_environment(name: str) -> bool:
    return name.lower().rstrip("s") in ("environment", "environ", "env")


def _is_secret_option(word: Any) -> bool:
    return isinstance(word, str) and word.startswith("-") and "=" not in word and is_secret_name(word)


def _length(value: str) -> str:
    return f"[text of {len(value)} characters]" if value else ""
