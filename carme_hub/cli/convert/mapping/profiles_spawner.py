"""wrapspawner's ProfilesSpawner: each of its profiles that starts a Slurm job becomes a profile here."""

from __future__ import annotations

from typing import Any

from carme_hub.cli.convert.findings import Level
from carme_hub.cli.convert.reading.config_file import ConfigFile, Setting
from carme_hub.cli.convert.reading.shell import read_options
from carme_hub.cli.convert.reading.values import Imported, LocalClass, Unknown
from carme_hub.cli.convert.site import TODO, Site
from carme_hub.spawners.slurm.batchspawner_names import IGNORED, KEPT, REPLACED

from .batch_script import map_items, map_script
from .batch_settings import FAMILY, OLD_NAMES, BatchSettings, add_profiles
from .spawner import is_spawner_trait

#: The class of wrapspawner, and what becomes of its settings.
SECTIONS = ("ProfilesSpawner", "WrapSpawner")
PROFILES_SPAWNER: dict[str, tuple[Level, str]] = {
    "profiles": (Level.CHANGED, "`profile_list`: one profile for each that starts a Slurm job"),
    "default_profile": (Level.CHANGED, "`default` of the profile"),
    "child_class": (Level.CHANGED, "`configure(c)` sets the spawner: carme-slurm"),
    "child_config": (Level.LOOK, "set these on the profile, or on `c.SlurmContainerSpawner` for all"),
    "ip": (Level.DROPPED, "a server listens on its node, and the hub checks its certificate"),
    "form_template": (Level.DROPPED, "the form is made of the profiles"),
    "input_template": (Level.DROPPED, "the form is made of the profiles"),
    "first_template": (Level.DROPPED, "the form is made of the profiles"),
}


def map_profiles(file: ConfigFile, setting: Setting, site: Site, base: BatchSettings) -> None:
    """Add a profile for each entry of ``ProfilesSpawner.profiles``."""
    entries = setting.value
    if isinstance(entries, Unknown) or not isinstance(entries, list | tuple):
        reason = entries.reason if isinstance(entries, Unknown) else "it is no list"
        sentence = f"the list cannot be read without running the file: {reason}"
        site.say(setting.line, setting.full_name, Level.LOOK, sentence)
        site.notes.append(f"{TODO} (line {setting.line}): write the profiles into profile_list: {sentence}")
        return
    site.say(setting.line, setting.full_name, *PROFILES_SPAWNER["profiles"])
    for number, entry in enumerate(entries):
        line = file.values.line_of(entries, number, setting.line)
        _map_entry(file, entry, line, site, base)


def map_default(setting: Setting, site: Site, keys: list[str]) -> None:
    """Mark the profile that is the default; ``keys`` are ProfilesSpawner's, in the order of the profiles."""
    value = setting.value[0] if isinstance(setting.value, tuple | list) and setting.value else setting.value
    for key, profile in zip(keys, site.profiles, strict=False):
        if value in (key, profile.data["display_name"]):
            profile.data["default"] = True
            site.say(setting.line, setting.full_name, *PROFILES_SPAWNER["default_profile"])
            return
    site.say(setting.line, setting.full_name, Level.LOOK, "mark the profile with `default`: True")


def _map_entry(file: ConfigFile, entry: object, line: int, site: Site, base: BatchSettings) -> None:
    if isinstance(entry, Unknown) or not isinstance(entry, list | tuple) or len(entry) != 4:
        reason = entry.reason if isinstance(entry, Unknown) else "it is no tuple of four"
        sentence = f"this profile cannot be read without running the file: {reason}"
        site.say(line, "ProfilesSpawner.profiles", Level.LOOK, sentence)
        site.notes.append(f"{TODO} (line {line}): write this profile into profile_list: {sentence}")
        return
    name, key, cls, settings = entry
    title = f"profile {key}"
    if isinstance(name, Unknown) or isinstance(key, Unknown) or not isinstance(settings, dict):
        reason = settings.reason if isinstance(settings, Unknown) else "its name or its settings are computed"
        sentence = f"this profile cannot be read without running the file: {reason}"
        site.say(line, title, Level.LOOK, sentence)
        site.notes.append(f"{TODO} (line {line}): write this profile into profile_list: {sentence}")
        return
    spawner = _class_name(cls)
    names = file.bases(spawner)
    if not any(each in FAMILY or each.endswith("SlurmSpawner") for each in names):
        _say_other_class(spawner, line, title, site)
        return
    found = BatchSettings(base.requests.copy(), list(base.images), list(base.modules))
    _map_settings(file, settings, line, site, found, title)
    before = len(site.profiles)
    add_profiles(found, site, name=str(name), key=str(key), comments=[f"line {line}: {key}"])
    folder = settings.get("notebook_dir")
    for profile in site.profiles[before:]:
        if isinstance(folder, str) and "{" not in folder:
            profile.data["slurm_override"] = {"working_folder": folder}
    site.say(line, title, Level.CHANGED, f"the profile {site.profiles[before].data['slug']} of `profile_list`")


def _class_name(cls: object) -> str:
    name = cls.name if isinstance(cls, Imported | LocalClass) else str(cls)
    return name.rpartition(".")[2]


def _say_other_class(spawner: str, line: int, title: str, site: Site) -> None:
    if spawner in ("LocalProcessSpawner", "SudoSpawner", "SystemdSpawner", "SimpleLocalProcessSpawner"):
        sentence = "no server runs on the hub's machine; give its users a small profile of a partition"
        site.say(line, title, Level.DROPPED, f"{spawner}: {sentence}")
    else:
        site.say(line, title, Level.LOOK, f"{spawner} starts no Slurm job; this profile is left out")


def _map_settings(
    file: ConfigFile, settings: dict[Any, Any], line: int, site: Site, found: BatchSettings, title: str
) -> None:
    for key, value in settings.items():
        name = OLD_NAMES.get(str(key), str(key))
        at = file.values.line_of(settings, key, line)
        if isinstance(value, Unknown) and name != "cmd":
            sentence = f"its value cannot be read without running the file: {value.reason}"
            site.say(at, name, Level.LOOK, sentence)
        elif name in KEPT:
            found.requests.set(name, value, at, name)
        elif name == "batch_script":
            script = map_script(str(value), file.lines_in_text(str(value), at), site, name, at, of_one=title)
            found.images = script.images or found.images
            found.requests.take(script.requests)
        elif name in ("req_options", "req_prologue"):
            _map_text(file, name, str(value), at, site, found, title)
        elif told := {**REPLACED, **IGNORED}.get(name, ""):
            level = Level.DROPPED if told.startswith("nothing") else Level.LOOK
            site.say(
                at, name, level, told.removeprefix("nothing: ") if level is Level.DROPPED else f"set instead: {told}"
            )
        elif name == "cmd":
            sentence = (
                "the image's own jupyterhub-singleuser is started; what else this command does belongs in the image"
            )
            site.say(at, name, Level.LOOK, sentence)
        elif name == "notebook_dir":
            site.say(at, name, Level.CHANGED, "`working_folder` in the profile's slurm_override")
        elif is_spawner_trait(name):
            site.say(at, name, Level.LOOK, f"one for all profiles here: `c.SlurmContainerSpawner.{name}`")
        else:
            site.say(at, name, Level.LOOK, "a setting of your own for the batch script, which is constant here")


def _map_text(file: ConfigFile, name: str, text: str, line: int, site: Site, found: BatchSettings, title: str) -> None:
    if name == "req_options":
        map_items(read_options(text, line), {}, site, found.requests, of_one=title)
    elif text.strip():
        found.images += map_script(text, file.lines_in_text(text, line), site, name, line, of_one=title).images
