"""Combination of a login class with ``CarmeAuthenticator`` in one class.

``CarmeAuthenticator.__new__`` calls it. A wrapper that delegates would have to know every attribute that the handlers
of any login class read; a subclass has them all. Settings keep their names: with PAM, ``c.PAMAuthenticator.service``
works as before.
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
    """Return a setting of ``cls`` before there is an instance, from the section of the most derived class with it."""
    for section in cls.section_names()[::-1]:  # type: ignore[attr-defined]
        if config is not None and section in config and name in config[section]:
            return config[section][name]
    return fallback


def login_class(value: Any) -> type[Authenticator]:
    """Return the authenticator class for an entry point's name, a dotted path or a class."""
    try:
        found = _CLASSES.validate(None, value)
    except (TraitError, ImportError) as error:
        raise ConfigError(
            f"CarmeAuthenticator.authenticator_class is {value!r}, which cannot be imported as an authenticator. "
            'Give an entry point\'s name ("pam", "native", "github", …), a dotted path or a class.'
        ) from error
    return found


def with_login_class(cls: Any, config: Config | None) -> Any:
    """Return a class that is ``cls`` first and the configured login class second."""
    inner = login_class(configured(cls, config, "authenticator_class", PAMAuthenticator))
    if issubclass(inner, _base_class(cls)):
        raise ConfigError(
            "CarmeAuthenticator.authenticator_class names CarmeAuthenticator itself. "
            'Name the class that does the login: "pam", "native", "github", …'
        )
    return type(f"Carme{inner.__name__}", (cls, inner), {"wrapped": inner, "__module__": cls.__module__})


def separate_groups(both: Any, config: Config) -> tuple[set[str], set[str]] | None:
    """Return our ``allowed_groups`` and those of the login class, where that class means something else by them.

    A setting of one name is one attribute of the combined class. The groups of JupyterHub and of oauthenticator are
    groups of users, as ours are; ``LDAPAuthenticator.allowed_groups`` are DNs, which it looks up at each login.
    """
    trait = both.wrapped.class_traits().get("allowed_groups")
    if trait is None or trait.this_class.__module__.startswith(("jupyterhub.", "oauthenticator.")):
        return None
    theirs = both.wrapped.section_names()
    ours = [section for section in both.section_names() if section not in theirs]
    found: tuple[set[str], set[str]] = (set(), set())
    for groups, sections in zip(found, (ours, theirs), strict=True):
        for section in sections:
            if section in config and "allowed_groups" in config[section]:
                groups.clear()
                groups.update(config[section]["allowed_groups"])
    return found


def _base_class(cls: type) -> type:
    """Return the base class that defines ``wrapped``: ``CarmeAuthenticator``, also for a class derived from it."""
    return next(base for base in reversed(cls.__mro__) if "wrapped" in vars(base))
