"""Write pages of docs/reference from the code: `python docs/traits.py`. A test compares.

settings.md, settings/ and cli.md are made of classes, converted-settings.md of the tables of `carme-hub convert`.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from traitlets import HasTraits, TraitType, Undefined
from traitlets.config import Application, Configurable

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the code beside these docs, not an installed release

import carme_hub
from carme_hub.cli.app import CarmeHubApp
from carme_hub.cli.convert.findings import Level
from carme_hub.cli.convert.mapping.hub import HUB, REMARKS, RENAMED, TLS
from carme_hub.cli.convert.mapping.moss import MOSS
from carme_hub.cli.convert.mapping.ondemand import ONDEMAND
from carme_hub.cli.convert.mapping.profiles_spawner import PROFILES_SPAWNER
from carme_hub.cli.convert.mapping.spawner import SPAWNER
from carme_hub.spawners.slurm.batchspawner_names import IGNORED, KEPT, REPLACED

REFERENCE = Path(__file__).resolve().parent / "reference"

#: The classes an administrator writes after ``c.``; traits of their bases are shown with them.
CLASSES = (
    "carme_hub.spawners.slurm.spawner.SlurmContainerSpawner",
    "carme_hub.spawners.docker.spawner.CarmeDockerSpawner",
    "carme_hub.spawners.apps.settings.CarmeApps",
    "carme_hub.auth.authenticator.CarmeAuthenticator",
    "carme_hub.slurm.settings.CarmeSlurm",
    "carme_hub.accounting.settings.CarmeQuotas",
    "carme_hub.accounting.settings.CarmeMirror",
    "carme_hub.booking.settings.CarmeReservations",
    "carme_hub.activity.settings.CarmeActivity",
    "carme_hub.images.settings.CarmeImages",
    "carme_hub.folders.settings.CarmeFolders",
    "carme_hub.administration.settings.CarmeStatus",
    "carme_hub.spawners.staging.settings.CarmeStaging",
    "carme_hub.store.engine.CarmeStore",
    "carme_hub.cli.standby.settings.CarmeStandby",
)
HEAD = "<!-- Written by docs/traits.py from the help of the traits; change it there. -->\n"


def public_classes() -> list[type[HasTraits]]:
    """Return the classes of ``CLASSES`` that exist."""
    found = []
    for name in CLASSES:
        module, _, attribute = name.rpartition(".")
        try:
            found.append(getattr(importlib.import_module(module), attribute))
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
    return found


def configurables() -> set[type[HasTraits]]:
    """Return every configurable class of ours, applications apart."""
    names = [
        module.name for module in pkgutil.walk_packages(carme_hub.__path__, "carme_hub.") if _importable(module.name)
    ]
    found: set[type[HasTraits]] = set()
    for name in names:
        for value in vars(importlib.import_module(name)).values():
            if inspect.isclass(value) and issubclass(value, Configurable) and not issubclass(value, Application):
                found |= {cls for cls in value.__mro__ if _ours(cls)}
    return found


def _importable(name: str) -> bool:
    # Not programs and configuration files, which do things when they are imported; nor the training package, which has
    # no traitlets (pyproject.toml), and modules for libraries of the user's image.
    if name.startswith("carme_hub.training."):
        return False
    return not name.endswith(("__main__", ".launch", ".singleuser", ".inside", "jupyterhub_config", "migrations.env"))


def _ours(cls: type) -> bool:
    return issubclass(cls, HasTraits) and cls.__module__.startswith("carme_hub")


def own_traits(cls: type[HasTraits]) -> Iterator[tuple[str, TraitType[Any, Any]]]:
    """Yield the settings that our code defines on a class or its bases, by name."""
    for name, trait in sorted(cls.class_traits(config=True).items()):
        if _ours(trait.this_class):  # type: ignore[arg-type]
            yield name, trait


def settings_pages() -> dict[str, str]:
    """Return the pages of all settings: one for each class, and the list of them."""
    classes = public_classes()
    pages = {f"settings/{cls.__name__}.md": _class_page(cls) for cls in classes}
    pages["settings.md"] = "\n".join(
        [
            HEAD,
            "# Settings\n",
            "The settings after `c.` in `jupyterhub_config.py`. The hub reports an unknown name when it starts.",
            "[`carme_hub.configure(c)`](configure.md) sets a safe site; these can be set in addition.\n",
            *(f"- [{cls.__name__}](settings/{cls.__name__}.md): {_first_line(cls)}" for cls in classes),
            "",
        ]
    )
    return pages


def _class_page(cls: type[HasTraits]) -> str:
    parts = [HEAD, f"# {cls.__name__}\n", inspect.cleandoc(cls.__doc__ or "") + "\n"]
    replaced = []
    for name, trait in own_traits(cls):
        if trait.metadata.get("replaced"):
            replaced.append(f"- `{cls.__name__}.{name}`: {_instead(trait.help)}")
        else:
            # Help that several spawners share shows the first of them in its examples.
            help = markdown(trait.help).replace("c.SlurmContainerSpawner.", f"c.{cls.__name__}.")
            parts += [f"## {cls.__name__}.{name}\n", f"Default: `{_default(trait)}`\n", help + "\n"]
    if replaced:
        parts += ["## Names of batchspawner that are refused\n", "With what to set instead:\n", *replaced, ""]
    parts += _other_defaults(cls)
    return "\n".join(parts).rstrip() + "\n"


def _first_line(cls: type) -> str:
    return (cls.__doc__ or "").strip().splitlines()[0]


def _instead(help: str) -> str:
    return help.partition("set instead: ")[2].rstrip(".") or help


def _default(trait: TraitType[Any, Any]) -> str:
    value = trait.default()
    if value is Undefined or (value is None and not trait.allow_none):
        return "computed"
    if inspect.isclass(value):
        return value.__name__
    return repr(value)


def _other_defaults(cls: type[HasTraits]) -> list[str]:
    """Say which defaults of JupyterHub's own settings are others with us."""
    names = set()
    for base in cls.__mro__:
        if _ours(base):
            names |= set(vars(base).get("_trait_default_generators", {}))
            names |= {
                value.trait_name
                for value in vars(base).values()
                if type(value).__name__ == "DefaultHandler" and hasattr(value, "trait_name")
            }
    theirs = sorted(name for name in names if name in cls.class_traits(config=True) and not _ours(_home(cls, name)))
    if not theirs:
        return []
    instance = cls()
    values = {name: getattr(instance, name) for name in theirs}
    rows = [f"- `{cls.__name__}.{name}` is `{value!r}`" for name, value in values.items() if not callable(value)]
    return ["## Settings of JupyterHub's own that have another default here\n", *rows, ""]


def _home(cls: type[HasTraits], name: str) -> Any:
    return cls.class_traits()[name].this_class


def markdown(help: str) -> str:
    """Return help text, which is reStructuredText of the simplest kind, as Markdown."""
    # JupyterHub adds the entry points of whoever writes this, in the order in which they are found.
    text = inspect.cleandoc(help.partition("\nCurrently installed:")[0]).rstrip()
    text = re.sub(r"::[ \t]*$", ":", text, flags=re.MULTILINE)
    return text.replace("``", "`")


def cli_page() -> str:
    """Return the page of all commands."""
    parts = [HEAD, "# Commands\n"]
    parts += ["Every command takes `--help`; `--help-all` also lists options that are rarely needed.\n"]
    parts += _command("carme-hub", CarmeHubApp)
    return "\n".join(parts).rstrip() + "\n"


def _command(name: str, app: type[Application]) -> Iterator[str]:
    yield f"## {name}\n"
    yield markdown(str(app.description)) + "\n"
    shorts: dict[str, list[str]] = {}
    for alias, target in _table(app.aliases).items():
        trait = target[0] if isinstance(target, tuple) else target
        for word in alias if isinstance(alias, tuple) else (alias,):
            shorts.setdefault(trait.rpartition(".")[2], []).append(f"-{word}" if len(word) == 1 else f"--{word}")
    for trait_name, trait in own_traits(app):
        if trait_name in shorts:
            words = ", ".join(f"`{word}`" for word in sorted(shorts[trait_name], key=len, reverse=True))
            yield f"- {words}: {' '.join(markdown(trait.help).split())}"
    for flag, (_, help) in _table(app.flags).items():
        word = flag[0] if isinstance(flag, tuple) else flag
        if flag not in _table(Application.flags):
            yield f"- `{'-' if len(word) == 1 else '--'}{word}`: {' '.join(markdown(help).split())}"
    yield ""
    for sub, (target, words) in _table(app.subcommands).items():
        cls = target
        if isinstance(target, str):
            module, _, attribute = target.rpartition(".")
            cls = getattr(importlib.import_module(module), attribute, None)
        if cls is None:
            yield f"## {name} {sub}\n\n{words}.\n"
        else:
            yield from _command(f"{name} {sub}", cls)


def _table(value: Any) -> dict[Any, Any]:
    """Return a class's table of aliases, flags or subcommands; a class without one has the bare trait."""
    return value if isinstance(value, dict) else {}


def converted_page() -> str:
    """Return the page of other programs' settings, and what becomes of them."""
    parts = [
        HEAD.replace("the help of the traits", "the tables of `carme-hub convert`"),
        "# Settings of other programs\n",
        "What each becomes by `carme-hub convert` ([how to use it](../howto/from-batchspawner.md)). *Kept*: the new",
        "file has it as it was. *Changed*: it says the same in another way. *Dropped*: it has no counterpart and needs",
        "none. *Look at it*: somebody has to decide.\n",
        "## batchspawner\n",
        "`SlurmSpawner`, `BatchSpawnerBase` and classes that derive from them. The hub itself reads the first names,",
        "to `req_homedir`, while `profile_list` is empty, and refuses those that cannot keep their meaning.\n",
        "| old | here |\n|---|---|",
        *(f"| `{name}` | {words} |" for name, words in KEPT.items()),
        *(f"| `{name}` | {_code(words)} |" for name, words in (REPLACED | IGNORED).items()),
        "",
        *_levels(
            "Every spawner", "Those that are not listed are kept.", {f"Spawner.{n}": v for n, v in SPAWNER.items()}
        ),
        *_levels("ProfilesSpawner and WrapSpawner", "", PROFILES_SPAWNER),
        *_levels("jupyterhub_moss", "Of `MOSlurmSpawner`, and the fields of its `partitions`.", MOSS),
        *_levels("Open OnDemand", "Attributes of `form.yml`, and keys of `submit.yml.erb`.", ONDEMAND),
        *_levels("The hub and the login", "All others are kept as they are.", HUB | REMARKS | _renamed()),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _renamed() -> dict[str, tuple[Level, str]]:
    renamed = {f"Authenticator.{old}": (Level.CHANGED, f"`{new}`") for old, new in RENAMED.items()}
    return renamed | dict.fromkeys(TLS, (Level.CHANGED, "https in place of http"))


def _levels(heading: str, words: str, table: dict[str, tuple[Level, str]]) -> Iterator[str]:
    yield f"## {heading}\n"
    if words:
        yield f"{words}\n"
    yield "| old | becomes | here |\n|---|---|---|"
    for name, (level, sentence) in table.items():
        yield f"| `{name.replace(', ', '`, `')}` | {level.value} | {sentence} |"
    yield ""


def _code(words: str) -> str:
    """Mark names of settings as code."""
    return re.sub(r"(c\.\w+\.\w+(?: = '\w+')?|\{'[^}]*\})", r"`\1`", words)


def pages() -> dict[str, str]:
    """Return every page by its path below docs/reference."""
    return {**settings_pages(), "cli.md": cli_page(), "converted-settings.md": converted_page()}


def main() -> None:
    """Write the pages."""
    for name, text in pages().items():
        (REFERENCE / name).parent.mkdir(parents=True, exist_ok=True)
        (REFERENCE / name).write_text(text)


if __name__ == "__main__":
    main()
