"""Settings that every spawner of JupyterHub has, whatever class the old file sets them on."""

from __future__ import annotations

import re

from jupyterhub.spawner import Spawner

from carme_hub.cli.convert.findings import Level
from carme_hub.cli.convert.reading.config_file import Setting
from carme_hub.cli.convert.site import Site

from .hub import put_aside, with_tls
from .kept_code import CodeOfSettings

_FORM = (
    "the form is made of the profiles; write choices of your own as profile_options, and read them from user_options"
)
_PROFILE = "the profile's own limit"
_IMAGE = "the container has nothing of the hub's environment; name what it needs in container_environment"
#: What becomes of those that do not stay.
SPAWNER: dict[str, tuple[Level, str]] = {
    "ip": (Level.DROPPED, "a server listens on its node, and the hub checks its certificate"),
    "port": (Level.DROPPED, "a server takes a free port of `port_range`"),
    "hub_connect_ip": (Level.LOOK, "`c.JupyterHub.hub_connect_ip`"),
    "env_keep": (Level.DROPPED, _IMAGE),
    "mem_limit": (Level.DROPPED, _PROFILE),
    "mem_guarantee": (Level.DROPPED, _PROFILE),
    "cpu_limit": (Level.DROPPED, _PROFILE),
    "cpu_guarantee": (Level.DROPPED, _PROFILE),
    "options_form": (Level.LOOK, _FORM),
    "options_from_form": (Level.LOOK, _FORM),
    "apply_user_options": (Level.LOOK, _FORM),
}


def is_spawner_trait(name: str) -> bool:
    """Whether every spawner has a setting of this name."""
    return name in Spawner.class_traits(config=True) or name in SPAWNER


def map_spawner_setting(setting: Setting, site: Site, code: CodeOfSettings) -> None:
    """Say and do what becomes of one setting that every spawner has."""
    if setting.target is None:
        sentence = f"set `c.SlurmContainerSpawner.{setting.name}`: the class is another"
        site.say(setting.line, setting.full_name, Level.LOOK, sentence)
        return
    if setting.name in SPAWNER:
        level, sentence = SPAWNER[setting.name]
        site.say(setting.line, setting.full_name, level, sentence)
        return
    if setting.name == "cmd":
        _map_cmd(setting, site)
        return
    new_name = ""
    if setting.section != "Spawner":
        new_name = f"{code.file.values.config}.SlurmContainerSpawner.{setting.name}"
    if not code.keep(setting, new_name):
        put_aside(setting, site, code, "it needs a package that the new hub does not have")
        return
    level, sentence = Level.KEPT, "as it is"
    if new_name:
        level, sentence = Level.CHANGED, f"`c.SlurmContainerSpawner.{setting.name}`"
    if (changed := with_tls(setting, site)) is not None:
        level, sentence = changed
    elif setting.name == "notebook_dir" and isinstance(setting.value, str):
        bind_folder(setting.value, setting.line, setting.full_name, site)
    elif setting.name == "args" and "NotebookApp." in repr(setting.value):
        level, sentence = Level.LOOK, "kept; Jupyter Server calls it ServerApp in place of NotebookApp"
    elif setting.name in ("pre_spawn_hook", "post_stop_hook", "auth_state_hook"):
        sentence = "as it is; it runs in the hub, and what it sets of `req_*` has no effect"
    site.say(setting.line, setting.full_name, level, sentence)


def bind_folder(folder: str, line: int, setting: str, site: Site) -> None:
    """Bind the file system of a folder in which servers start, where that is not the home."""
    if folder.startswith(("~", "/home/", "{")) or not folder.startswith("/") or folder == "/":
        return
    first = "/".join(folder.split("/")[:2])
    if not re.search(r"[{}$]", first):
        site.add_bind(first, line, setting)


def _map_cmd(setting: Setting, site: Site) -> None:
    value = setting.value
    words = value if isinstance(value, list) else str(value).split()
    plain = len(words) == 1 and str(words[0]).rpartition("/")[2] in ("jupyterhub-singleuser", "jupyter-labhub")
    if plain:
        site.say(setting.line, setting.full_name, Level.DROPPED, "the image's own jupyterhub-singleuser is started")
    else:
        sentence = "the image's own jupyterhub-singleuser is started; what else this command does belongs in the image"
        site.say(setting.line, setting.full_name, Level.LOOK, sentence)
