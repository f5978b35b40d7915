"""What other packages add to Carme Hub, found by the entry points that they name when they are installed.

A package adds a thing by an entry point, as JupyterHub's ``jupyterhub.spawners`` are added. There is one group for each
kind, ``carme_hub.runtimes`` for one; the ``ExtensionPoint`` of a kind stands in the module that uses it. Three rules
hold for all of them:

- To be installed is not enough. An extension is used where a setting names it, and not imported before, so that no
  package loosens a limit or sees a user's data by itself. (Training templates, which run nothing by themselves and lie
  in the user's own image, are shown as they are found: ``carme_hub.training.templates.installed``.)
- Ours come first: no package takes the place of what Carme Hub has under the same name.
- What is wrong stops the start with a ``ConfigError`` that names the setting, the package and what to do.

A name that is no text is taken for the thing itself, so that a small one can stand in ``jupyterhub_config.py``. A class
is made into an object: with ``parent=`` where it has traits, so that it has settings of its own, as ``c.ItsName.…``.
"""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any

from carme_hub.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ExtensionPoint:
    """One kind of extension.

    Attributes:
        group: of its entry points. setting: the one that names them, such as "CarmeQuotas.policy_rules".
        what: what one has to be, as words after "must be". fits: returns whether an object is that.
        ours: names of those that Carme Hub has itself, for messages.
    """

    group: str
    setting: str
    what: str
    fits: Callable[[Any], bool] = callable
    ours: tuple[str, ...] = ()

    def load(self, named: object, parent: Any = None) -> Any:
        """Return the extension of that name; what is no text is the extension itself.

        Args:
            parent: the configurable object that a class with traits takes its settings from.

        Raises:
            ConfigError: there is none, it is broken, it is of another kind, or two packages have it.
        """
        if isinstance(named, str):
            point = self._entry_point(named)
            source = f"{named!r} of the package {_package(point)} ({point.value})"
            found = _imported(point, self.setting, source)
        else:
            source, found = repr(named), named
        made = _made(found, parent, f"c.{self.setting}: {source}") if inspect.isclass(found) else found
        if not self.fits(made):
            kind = (
                "a class whose objects are"
                if inspect.isclass(found)
                else f"of the type {type(made).__name__}, which is"
            )
            raise ConfigError(f"c.{self.setting}: {source} is {kind} not {self.what}. Tell the package's author.")
        return made

    def load_all(self, names: Iterable[object], parent: Any = None) -> dict[str, Any]:
        """Return the extensions of these names by name, in this order; one that is itself goes by its own name."""
        found: dict[str, Any] = {}
        for named in names:
            name = named if isinstance(named, str) else str(getattr(named, "__name__", type(named).__name__))
            if name in found:
                raise ConfigError(f"c.{self.setting} names {name!r} twice. Name it once.")
            found[name] = self.load(named, parent)
        return found

    def source(self, name: str) -> str:
        """Return which package an installed extension comes from, as "name version"."""
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


@functools.cache
def installed(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group. They are read once: a running hub goes on with what it began with."""
    return tuple(importlib.metadata.entry_points(group=group))


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "of an unknown name"


def _imported(point: EntryPoint, setting: str, source: str) -> Any:
    try:
        return point.load()
    except Exception as error:  # another project's code may fail in any way as it is imported
        raise ConfigError(
            f"c.{setting}: {source} cannot be imported: {type(error).__name__}: {error}. Install what it lacks or "
            "another version of it, or take the name out of the setting."
        ) from error


def _made(cls: Any, parent: Any, where: str) -> Any:
    try:
        return cls(parent=parent) if hasattr(cls, "class_traits") else cls()
    except Exception as error:
        raise ConfigError(f"{where} cannot be set up: {type(error).__name__}: {error}.") from error
