"""Write the new jupyterhub_config.py: kept code, ``configure(c)``, and Carme Hub's settings, with comments.

``configure(c)`` comes after the kept code, because it fills in what is not set and adds to lists that are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .findings import Level
from .site import TODO, Site

_WIDTH = 110


def write(site: Site, state_folder: str) -> str:
    """Return the text of the new file."""
    return "\n".join(_lines(site, state_folder)).rstrip() + "\n"


def _lines(site: Site, state_folder: str) -> Iterator[str]:
    open_questions = sum(finding.level is Level.LOOK for finding in site.findings)
    yield f'"""Carme Hub\'s configuration, written by `carme-hub convert` from {_plain(site.file)}.'
    yield ""
    yield f"{open_questions} things need a decision: `carme-hub convert` lists them. {TODO} marks what is missing"
    yield 'here. Then run `carme-hub doctor`. Every setting is in docs/reference/settings.md."""'
    yield ""
    yield "import carme_hub"
    yield ""
    yield "c = get_config()  # noqa: F821  given by traitlets"
    if site.config != "c":
        yield f"{site.config} = c"
    if site.code:
        yield from _heading("As it was: the hub, the login, servers")
        before = site.code[0].line - 1
        for code in site.code:
            if code.line > before + 1:
                yield ""
            yield code.text
            before = code.end
    yield from _heading("A safe site; what is set above stays")
    yield f"carme_hub.configure(c, state_folder={_literal(state_folder)})"
    for name, value in site.hub.items():
        yield f"c.{name} = {_literal(value)}"
    yield from _heading("Slurm")
    if "cluster" not in site.slurm:
        yield f'# {TODO}: c.CarmeSlurm.cluster = "…"  # ClusterName of slurm.conf'
    for name, value in site.slurm.items():
        yield f"c.CarmeSlurm.{name} = {_literal(value)}"
    yield from _heading("Containers")
    yield from _containers(site)
    yield from _heading("What is offered")
    yield from _profiles(site)
    if site.notes:
        yield from _heading("Left to do")
        for note in site.notes:
            yield from (f"# {line}".rstrip() for line in note.splitlines())


def _heading(text: str) -> Iterator[str]:
    yield ""
    yield f"# -- {text} {'-' * max(3, 114 - len(text))}"


def _containers(site: Site) -> Iterator[str]:
    spawner = "c.SlurmContainerSpawner"
    if site.runtime:
        yield f'{spawner}.container_runtime = "{site.runtime}"'
    missing = [name for name, image in site.images.items() if "format" not in image]
    if missing:
        yield f"# {TODO}: make these images, or correct their paths: {', '.join(missing)}"
        yield "# (docs/howto/add-an-image.md); a session does not start without."
    yield f"{spawner}.images = {_literal(list(site.images.values()))}"
    if site.binds:
        binds = [(bind.source, bind.destination, bind.mode) for bind in site.binds.values()]
        yield f"{spawner}.container_binds = {_literal(binds)}"
    if site.environment:
        yield f"{spawner}.container_environment = {_literal(site.environment)}"
    if site.extra:
        yield f"{spawner}.slurm_extra = {_literal(site.extra)}"
    for name, value in site.spawner.items():
        if name == "node_address":
            text = "{node}".join(part.replace("{", "{{").replace("}", "}}") for part in value)
            yield f"{spawner}.node_address = lambda node: f{_literal(text)}"
        else:
            yield f"{spawner}.{name} = {_literal(value)}"


def _profiles(site: Site) -> Iterator[str]:
    if not site.profiles:
        yield f"# {TODO}: c.SlurmContainerSpawner.profile_list = […]  # docs/howto/offer-profiles.md"
        return
    yield "c.SlurmContainerSpawner.profile_list = ["
    order = ("slug", "display_name", "description", "default", "partition")
    for profile in site.profiles:
        for comment in profile.comments:
            yield f"    # {_plain(comment)}"
        first = {name: profile.data[name] for name in order if profile.data.get(name)}
        data = first | {name: value for name, value in profile.data.items() if name not in order}
        if data.get("images") == list(site.images):
            del data["images"]  # all of them, as without it
        yield f"    {_literal(data, 4, always=True)},"
    yield "]"


def _plain(text: str) -> str:
    """Return a text that ends neither a comment nor a docstring."""
    return " ".join(text.replace("\\", "/").replace('"', "'").split())


def _literal(value: Any, indent: int = 0, *, always: bool = False) -> str:
    """Return Python's literal, over several lines where it is long, in the manner of ruff format."""
    short = _short(value)
    if not isinstance(value, dict | list) or not value or (not always and len(short) + indent <= _WIDTH):
        return short
    inner = indent + 4
    if isinstance(value, dict):
        rows = [f"{_short(key)}: {_literal(each, inner)}" for key, each in value.items()]
    else:
        rows = [_literal(each, inner) for each in value]
    opened, closed = ("{", "}") if isinstance(value, dict) else ("[", "]")
    body = "".join(f"{' ' * inner}{row},\n" for row in rows)
    return f"{opened}\n{body}{' ' * indent}{closed}"


def _short(value: Any) -> str:
    if isinstance(value, str):
        text = repr(value)
        return f'"{text[1:-1]}"' if text.startswith("'") and '"' not in text else text
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_short(key)}: {_short(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_short, value)) + "]"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_short, value)) + ("," if len(value) == 1 else "") + ")"
    return repr(value)
