"""Extensions of Carme Hub by other packages, which register them as entry points.

An entry point registers an extension in the same way as a spawner in JupyterHub's group ``jupyterhub.spawners``. Each
kind of extension has its own group, such as ``carme_hub.runtimes``; the module that uses a kind defines its
``ExtensionPoint``. Three rules apply to all kinds:

- Installation alone enables nothing. An extension is imported and used only if a setting names it, so that no package
  can loosen a limit or read a user's data on its own. (Training templates are the exception: they run nothing on their
  own and are part of the user's own image, so all of them are listed: ``carme_hub.training.templates.installed``.)
- Built-in names take precedence: no package can replace a built-in part of Carme Hub by using its name.
- An error stops the start with a ``ConfigError`` that names the setting, the package and what to do.

A setting can also hold the object itself instead of a name, so that a small extension can be defined in
``jupyterhub_config.py``. A class is instantiated; if it has traits, with ``parent=``, so that it has its own settings
as ``c.ItsName.…``.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.metadata
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any

from carme_hub.errors import ConfigError

#: Seconds that one call of an extension may take.
CALL_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class ExtensionPoint:
    """One kind of extension.

    Attributes:
        group: of its entry points. setting: the setting that names them, such as "CarmeQuotas.policy_rules".
        what: the required kind of object, as words after "is not". fits: returns whether an object is of that kind.
        ours: names of the built-in ones, for messages.
    """

    group: str
    setting: str
    what: str
    fits: Callable[[Any], bool] = callable
    ours: tuple[str, ...] = ()

    def load(self, named: object, parent: Any = None) -> Any:
        """Return the extension of that name; an object that is not a text is the extension itself.

        Args:
            parent: the configurable object from which a class with traits gets its settings.

        Raises:
            ConfigError: no package has it, it is broken or of another kind, or two packages have it.
        """
        if isinstance(named, str):
            point = self._entry_point(named)
            source = f"{named!r} of the package {_package(point)} ({point.value})"
            found = _import(point, self.setting, source)
        else:
            source, found = repr(named), named
        made = _create(found, parent, f"c.{self.setting}: {source}") if inspect.isclass(found) else found
        if not self.fits(made):
            kind = (
                "a class whose objects are"
                if inspect.isclass(found)
                else f"of the type {type(made).__name__}, which is"
            )
            raise ConfigError(f"c.{self.setting}: {source} is {kind} not {self.what}. Tell the package's author.")
        return made

    def load_all(self, names: Iterable[object], parent: Any = None) -> dict[str, Any]:
        """Return the extensions by name, in this order; a class or function without an entry point has its own name."""
        found: dict[str, Any] = {}
        for named in names:
            name = named if isinstance(named, str) else str(getattr(named, "__name__", type(named).__name__))
            if name in found:
                raise ConfigError(f"c.{self.setting} names {name!r} twice. Name it once.")
            found[name] = self.load(named, parent)
        return found

    def source(self, name: str) -> str:
        """Return the package of an installed extension, as "name version"."""
        return _package(self._entry_point(name))

    def _entry_point(self, name: str) -> EntryPoint:
        there = installed(self.group)
        named = [each for each in there if each.name == name]
        if not named:
            known = sorted({each.name for each in there})
            ours = f"Carme Hub has {', '.join(self.ours)}; installed" if self.ours else "Installed"
            raise ConfigError(
                f"c.{self.setting} names {name!r}, and no installed package has it. {ours} packages have "
                f"{', '.join(known) or 'none'} (entry points {self.group}). Correct the name, or install the package "
                "into the hub's own environment."
            )
        if len(named) > 1:
            packages = " and ".join(sorted(f"{_package(each)} ({each.value})" for each in named))
            raise ConfigError(
                f"c.{self.setting} names {name!r}, and more than one package has it: {packages}. Uninstall all but one."
            )
        return named[0]


async def call(extension: Callable[..., Any], *args: Any, timeout: float = CALL_TIMEOUT) -> Any:
    """Call an extension without blocking the event loop: an ``async`` one on the loop, any other in a thread.

    Raises:
        TimeoutError: it takes longer than ``timeout`` seconds; a thread then continues in the background.
    """
    async with asyncio.timeout(timeout):
        if inspect.iscoroutinefunction(extension) or inspect.iscoroutinefunction(type(extension).__call__):
            result = extension(*args)
        else:
            result = await asyncio.to_thread(extension, *args)
        return await result if inspect.isawaitable(result) else result


@functools.cache
def installed(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group. They are read once: a running hub does not see packages installed later."""
    return tuple(importlib.metadata.entry_points(group=group))


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "of an unknown name"


def _import(point: EntryPoint, setting: str, source: str) -> Any:
    try:
        return point.load()
    except Exception as error:  # importing another project's code may raise anything
        raise ConfigError(
            f"c.{setting}: {source} cannot be imported: {type(error).__name__}: {error}. Install what it requires "
            "or another version of it, or remove the name from the setting."
        ) from error


def _create(cls: Any, parent: Any, where: str) -> Any:
    try:
        return cls(parent=parent) if hasattr(cls, "class_traits") else cls()
    except Exception as error:
        raise ConfigError(f"{where} cannot be created: {type(error).__name__}: {error}.") from error
