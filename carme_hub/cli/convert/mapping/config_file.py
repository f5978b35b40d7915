"""A whole jupyterhub_config.py: each of its settings goes to the module for its class, in the order of the file."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from carme_hub.cli.convert.findings import Level
from carme_hub.cli.convert.reading.config_file import ConfigFile, Setting
from carme_hub.cli.convert.reading.values import Imported, LocalClass, dotted
from carme_hub.cli.convert.site import TODO, Site

from .batch_settings import add_profiles, is_batchspawner, map_batch_settings
from .hub import check_allowed, leave_out, map_hub_setting, name_the_hub
from .kept_code import CodeOfSettings
from .moss import MOSS, SECTION, PartitionSize, map_moss
from .profiles_spawner import PROFILES_SPAWNER, SECTIONS, map_default, map_profiles
from .spawner import is_spawner_trait, map_spawner_setting


def map_config_file(file: ConfigFile, site: Site, sizes: Mapping[str, PartitionSize]) -> None:
    """Say and do what becomes of a file; ``sizes`` has what sinfo says of partitions, as far as it is known."""
    code = CodeOfSettings(file)
    site.config = file.values.config
    batch: list[Setting] = []
    chosen: list[Setting] = []
    for setting in file.settings:
        section = setting.section
        if (section in SECTIONS and setting.name in PROFILES_SPAWNER) or setting.full_name == f"{SECTION}.partitions":
            chosen.append(setting)
        elif section.endswith("Spawner") or section == "BatchSpawnerBase" or is_batchspawner(file, section):
            _map_spawners(file, setting, site, code, batch)
        elif section in file.classes and not _is_authenticator(file, section):
            pass  # a class of the file for something else
        else:
            map_hub_setting(setting, site, code)
    found = map_batch_settings(file, batch, site)
    lists = [setting for setting in chosen if setting.name in ("profiles", "partitions")]
    for setting in lists:
        if setting.name == "profiles":
            if setting is file.last(setting.section, "profiles"):
                map_profiles(file, setting, site, found)
        elif setting is file.last(SECTION, "partitions"):
            map_moss(file, setting, site, sizes)
    for setting in chosen:
        if setting.name == "default_profile":
            map_default(setting, site, [profile.data["slug"] for profile in site.profiles])
        elif setting not in lists:
            site.say(setting.line, setting.full_name, *PROFILES_SPAWNER[setting.name])
    if not lists:
        add_profiles(found, site)
    _remarks(file, site)
    check_allowed(file, site)
    name_the_hub(file, site)
    _say_left_out(file, site, code)
    site.code = code.code()


def _map_spawners(file: ConfigFile, setting: Setting, site: Site, code: CodeOfSettings, batch: list[Setting]) -> None:
    section, name = setting.section, setting.name
    if section == SECTION and name in MOSS:
        site.say(setting.line, setting.full_name, *MOSS[name])
    elif is_spawner_trait(name) and (section == "Spawner" or section in SECTIONS or is_batchspawner(file, section)):
        map_spawner_setting(setting, site, code)
    elif is_batchspawner(file, section):
        batch.append(setting)
    elif section == "Spawner":
        site.say(setting.line, setting.full_name, Level.LOOK, "JupyterHub 6 has no such setting; left out")
    elif section in SECTIONS:
        site.say(setting.line, setting.full_name, Level.LOOK, "not known: ProfilesSpawner has no such setting")
    else:
        sentence = f"{section} starts no Slurm job; Carme Hub needs Slurm (or Docker: docs/howto/one-gpu-box.md)"
        site.say(setting.line, setting.full_name, Level.LOOK, sentence)


def _say_left_out(file: ConfigFile, site: Site, code: CodeOfSettings) -> None:
    """Name the statements that do something besides settings, such as a change of sys.path, and show them."""
    told = {remark.line for remark in file.remarks if remark.kind != "method"}
    for node in code.left_out():
        if told.intersection(range(node.lineno, (node.end_lineno or node.lineno) + 1)):
            continue
        what = f"a statement with {type(node).__name__.lower()}"
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            what = f"{dotted(node.value.func) or 'a function'}()"
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            what = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
        leave_out(
            node, what, "it does something besides settings; it is left out, and the new file shows it", site, code
        )


def _is_authenticator(file: ConfigFile, section: str) -> bool:
    return any(name.endswith("Authenticator") for name in file.bases(section))


def _remarks(file: ConfigFile, site: Site) -> None:
    """Say what a file does besides settings: imports of old packages, calls, methods of its own classes."""
    for name, value in file.values.names.items():
        module = value.name.partition(".")[0] if isinstance(value, Imported) else ""
        if module in ("batchspawner", "wrapspawner", "jupyterhub_moss"):
            line = next((n for n, text in enumerate(file.lines, 1) if "import" in text and module in text), 0)
            sentence = "not imported: importing batchspawner adds a handler that sets any attribute of a spawner"
            if module != "batchspawner":
                sentence = "not imported: Carme Hub's own spawner and form are in its place"
            site.say(line, f"import {module}", Level.DROPPED, sentence)
        if isinstance(value, LocalClass) and is_batchspawner(file, name):
            line = next((n for n, text in enumerate(file.lines, 1) if text.startswith(f"class {name}")), 0)
            site.say(line, f"class {name}", Level.LOOK, "a spawner of your own: Carme Hub's is in its place")
    for remark in file.remarks:
        if remark.kind == "method" and is_batchspawner(file, remark.what.partition(".")[0]):
            sentence = "no code of yours is in the spawner; `pre_spawn_hook`, `profile_list` and `admission` call it"
            site.say(remark.line, remark.what, Level.LOOK, sentence)
        elif remark.kind == "subconfig":
            site.say(remark.line, "load_subconfig", Level.LOOK, "another file has settings, too: convert it as well")
            site.notes.append(f"{TODO} (line {remark.line}): load_subconfig reads another file; convert it as well")
        elif remark.kind == "call" and remark.what == "jupyterhub_moss.set_config":
            site.say(remark.line, remark.what, Level.DROPPED, "`configure(c)` sets the spawner and its pages")
        elif remark.kind == "call":
            sentence = "it may set anything; it is not called. Write what it sets"
            site.say(remark.line, f"{remark.what}(c)", Level.LOOK, sentence)
            site.notes.append(f"{TODO} (line {remark.line}): {remark.what}(c): {sentence}")
