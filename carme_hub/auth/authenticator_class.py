"""How a login class and our rules become one class.

A wrapper that hands calls on would have to know every attribute that any login class's handlers read; a subclass has
them all. Settings keep their names too: with PAM, ``c.PAMAuthenticator.service`` works as ever.
"""

from __future__ import annotations

from typing import Any

from jupyterhub.auth import Authenticator, PAMAuthenticator
from jupyterhub.traitlets import EntryPointType
from traitlets import TraitError
from traitlets.config import Config

from carme_hub.errors import ConfigError

_CLASSES = EntryPointType(klass=Authenticator, entry_point_group="jupyterhub.authenticators")


def configured(cls: type, config: Config | None, name: str, fallback: Any) -> Any:
    """Return a setting of ``cls`` before there is an instance, from the most derived section that has it."""
    for section in cls.section_names()[::-1]:  # type: ignore[attr-defined]
        if config is not None and section in config and name in config[section]:
            return config[section][name]
    return fallback


def login_class(value: Any) -> type[Authenticator]:
    """Return the authenticator class that an entry point's name, a dotted path or the class itself names."""
    try:
        found = _CLASSES.validate(None, value)
    except (TraitError, ImportError) as error:
        raise ConfigError(
            f"CarmeAuthenticator.authenticator_class is {value!r}, which is no authenticator that can be imported. "
            'Give an entry point\'s name ("pam", "native", "github", …), a dotted path or a class.'
        ) from error
    return found


def over(cls: Any, config: Config | None) -> Any:
    """Return a class that is ``cls`` first and the configured login class second."""
    inner = login_class(configured(cls, config, "authenticator_class", PAMAuthenticator))
    if issubclass(inner, _ours(cls)):
        raise ConfigError(
            "CarmeAuthenticator.authenticator_class names CarmeAuthenticator itself. "
            'Name the class that knows how to log in: "pam", "native", "github", …'
        )
    return type(f"Carme{inner.__name__}", (cls, inner), {"over": inner, "__module__": cls.__module__})


def _ours(cls: type) -> type:
    """Return the class among the bases that defines ``over``: ours, whoever derived from it."""
    return next(base for base in reversed(cls.__mro__) if "over" in vars(base))
