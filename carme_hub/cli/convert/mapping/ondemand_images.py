"""The containers of an Open OnDemand app: in its scripts, and in the choices of its form."""

from __future__ import annotations

import re
from dataclasses import replace

from carme_hub.cli.convert.findings import Level
from carme_hub.cli.convert.reading.ondemand_app import App, Attribute
from carme_hub.cli.convert.reading.shell import Container, Export, Other, read_shell
from carme_hub.cli.convert.site import Site

from .batch_script import Script, map_container, map_items

_REFERENCE = re.compile(r"<%=-?\s*(?:context\.)?(\w+)[^%]*?%>")
_STARTS = re.compile(r"\b(singularity|apptainer)\b|--container-image")


def map_images(app: App, site: Site, used: set[str]) -> list[str]:
    """Offer the images that the app starts; return their names. ``used`` receives the attributes that name them."""
    names: list[str] = []
    for attribute in app.attributes.values():
        if any(_STARTS.search(option.value) for option in attribute.options):
            names += _from_choices(attribute, site)
            used.add(attribute.name)
    # Variables of one script are in force in the next.
    text = "\n".join(text for _, text in app.scripts)
    places: list[tuple[str, int]] = []
    for file, script in app.scripts:
        places += [(file, number) for number in range(1, len(script.split("\n")) + 1)]
    for item in read_shell(text):
        file, line = places[item.line - 1]
        if isinstance(item, Container):
            names += _of_container(item, file, line, app, site, used)
        elif "before" in file and isinstance(item, Other | Export):
            sentence = "ports, passwords and settings of Jupyter: the hub makes the connection itself"
            site.say(0, "its commands", Level.DROPPED, sentence, file)
        else:
            script_of_item = Script()
            map_items([item], {item.line: line}, site, script_of_item.requests, script_of_item, file)
    return list(dict.fromkeys(names))


def _from_choices(attribute: Attribute, site: Site) -> list[str]:
    """Offer an image for each choice whose value is a piece of shell."""
    names = []
    for option in attribute.options:
        text = option.value.replace("\\n", "\n").replace("; }", "\n}").replace("{ ", "{\n")
        items = read_shell(text)
        containers = [item for item in items if isinstance(item, Container)]
        title = f"{attribute.name} “{option.label}”"
        name = ""
        for container in containers:
            container = replace(container, image=container.image.strip())
            name = map_container(container, option.line, site, name=option.label) or name
        if name:
            names.append(name)
        else:
            sentence = (
                "it starts no container: make an image of it (docs/howto/add-an-image.md), and list it in `images`"
            )
            site.say(option.line, title, Level.LOOK, sentence)
    return names


def _of_container(item: Container, file: str, line: int, app: App, site: Site, used: set[str]) -> list[str]:
    """Offer the image of a container, or one for each choice of the attribute that names it."""
    referred = [name for name in _REFERENCE.findall(item.image) if name in app.attributes or name in app.form]
    if not referred:
        name = map_container(item, line, site, file)
        return [name] if name else []
    attribute = app.attributes.get(referred[0]) or Attribute(referred[0], 0)
    used.add(attribute.name)
    choices = [(option.label, option.value) for option in attribute.options]
    if not choices and attribute.value:
        choices = [(attribute.label, attribute.value)]
    names = []
    for label, value in choices:
        path = _REFERENCE.sub(value, item.image)
        if "$" in path:
            path = value
        name = map_container(replace(item, image=path), line, site, file, description=label)
        if name:
            names.append(name)
    if not choices:
        sentence = "users name any image; here they choose among those in `images`"
        site.say(attribute.line, attribute.name, Level.LOOK, sentence)
        for bind in item.binds:
            site.add_bind(bind, line, "--bind", file)
    return names
