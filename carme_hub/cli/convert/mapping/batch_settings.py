"""batchspawner's settings: ``req_*`` make a profile, the script is read, ways to call Slurm become CarmeSlurm's.

What becomes of each name is in ``carme_hub.spawners.slurm.batchspawner_names``; the hub reads the same tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from carme_hub.cli.convert.findings import Level
from carme_hub.cli.convert.reading.config_file import ConfigFile, Setting
from carme_hub.cli.convert.reading.shell import read_options
from carme_hub.cli.convert.reading.values import Unknown, is_plain, unknown_in
from carme_hub.cli.convert.site import GPU_TYPE_TODO, TODO, Site
from carme_hub.errors import ConfigError
from carme_hub.spawners.slurm.batchspawner_names import IGNORED, KEPT, REPLACED, gib_of, minutes_of, profile_of

from .batch_script import Requests, map_items, map_script

#: Class names of batchspawner whose settings apply to a class for Slurm, the most general first.
FAMILY = ("BatchSpawnerBase", "BatchSpawnerRegexStates", "SlurmSpawner", "MOSlurmSpawner")
#: Older names of batchspawner, and of sites' own classes, that have a name above.
OLD_NAMES = {"req_queue": "req_partition"}
_ONE_QUERY = "the hub asks Slurm itself, once for all users, and cancels jobs itself"
HELPERS = ["/usr/local/libexec/carme-submit"], ["/usr/local/libexec/carme-jobs"]


def is_batchspawner(file: ConfigFile, section: str) -> bool:
    """Whether a class is batchspawner's for Slurm, or derives from it."""
    names = file.bases(section)
    return any(name in FAMILY or name.endswith("SlurmSpawner") for name in names)


@dataclass
class BatchSettings:
    """What a file says to batchspawner, before it becomes profiles.

    Attributes:
        requests: values of ``req_*`` and of the script's own options. images: those of the script.
    """

    requests: Requests = field(default_factory=Requests)
    images: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)


def map_batch_settings(file: ConfigFile, settings: Iterable[Setting], site: Site) -> BatchSettings:
    """Say and do what becomes of the settings of batchspawner's classes; return what profiles are made of."""
    found = BatchSettings()
    last: dict[str, Setting] = {}
    # The most derived class wins, whatever the order in the file.
    for setting in sorted(settings, key=lambda s: _rank(file, s.section)):
        last[setting.name] = setting
    for setting in sorted(last.values(), key=lambda s: s.line):
        _map(file, setting, site, found)
    _submission(last, site)
    return found


def _rank(file: ConfigFile, section: str) -> int:
    return FAMILY.index(section) if section in FAMILY else len(FAMILY) + len(file.bases(section))


def _map(file: ConfigFile, setting: Setting, site: Site, found: BatchSettings) -> None:
    name, value, line, full = OLD_NAMES.get(setting.name, setting.name), setting.value, setting.line, setting.full_name
    if name in ("batch_query_cmd", "batch_cancel_cmd") and isinstance(value, Unknown):
        site.say(line, full, Level.DROPPED, _ONE_QUERY)
    elif not is_plain(value):
        _say_unknown(setting, unknown_in(value) or Unknown("it is no constant", line), site)
    elif name in KEPT and name != "req_homedir":
        found.requests.set(name, value, line, full)
    elif name == "req_homedir":
        site.spawner["req_homedir"] = value
        site.say(line, full, Level.KEPT, "`c.SlurmContainerSpawner.req_homedir`")
    elif name == "batch_script":
        script = map_script(str(value), file.lines_in_text(str(value), line), site, setting.full_name, line)
        found.images += script.images
        found.modules += script.modules
        found.requests.take(script.requests)
    elif name in ("req_prologue", "req_epilogue"):
        _map_commands(file, setting, site, found)
    elif name == "req_options":
        options = "each of its options is below" if str(value).strip() else "it is empty"
        site.say(line, full, Level.CHANGED if str(value).strip() else Level.DROPPED, options)
        map_items(read_options(str(value), line), {}, site, found.requests)
    elif name == "state_exechost_exp":
        _node_names(setting, str(value), site)
    elif name == "startup_poll_interval" and re.fullmatch(r"\d{1,9}(\.\d+)?", str(value)):
        site.slurm["fast_interval"] = max(0.5, float(value))
        site.say(line, full, Level.CHANGED, f"`{REPLACED[name]}`: one query for all users")
    elif name == "req_cluster":
        site.slurm["cluster"] = str(value)
        site.say(line, full, Level.CHANGED, "`c.CarmeSlurm.cluster`: it must be slurm.conf's ClusterName")
    elif name in ("exec_prefix", "batch_submit_cmd", "batch_query_cmd", "batch_cancel_cmd"):
        pass  # said by _submission
    elif name in REPLACED or name in IGNORED:
        _say_replaced(setting, {**REPLACED, **IGNORED}[name], site)
    elif name.startswith("req_"):
        site.say(line, full, Level.LOOK, "a setting of your own for the batch script, which is constant here")
    else:
        site.say(line, full, Level.LOOK, "not known: neither batchspawner nor JupyterHub has it")


def _say_unknown(setting: Setting, value: Unknown, site: Site) -> None:
    sentence = f"its value cannot be read without running the file: {value.reason}"
    told = {**KEPT, **REPLACED, **IGNORED}.get(setting.name, "")
    if told.startswith("nothing"):
        site.say(setting.line, setting.full_name, Level.DROPPED, told.removeprefix("nothing: "))
        return
    site.say(setting.line, setting.full_name, Level.LOOK, f"{sentence}. Here it is: {told}" if told else sentence)
    site.notes.append(f"{TODO} (line {setting.line}): {setting.full_name}: {sentence}")


def _say_replaced(setting: Setting, instead: str, site: Site) -> None:
    if instead.startswith("nothing"):
        site.say(setting.line, setting.full_name, Level.DROPPED, instead.removeprefix("nothing: "))
    else:
        site.say(setting.line, setting.full_name, Level.LOOK, f"set instead: {instead}")


def _map_commands(file: ConfigFile, setting: Setting, site: Site, found: BatchSettings) -> None:
    text = str(setting.value)
    if not text.strip():
        site.say(setting.line, setting.full_name, Level.DROPPED, "it is empty")
        return
    if setting.name == "req_epilogue" and text.strip() == "EOF":
        site.say(setting.line, setting.full_name, Level.DROPPED, "it only ends the prologue's here-document")
        return
    script = map_script(text, file.lines_in_text(text, setting.line), site, setting.full_name, setting.line)
    found.modules += script.modules
    found.images += script.images


def _node_names(setting: Setting, value: str, site: Site) -> None:
    match = re.fullmatch(r"(.*)\\1(.*)|(.*)\\g<1>(.*)", value)
    if match is None:
        _say_replaced(setting, REPLACED["state_exechost_exp"], site)
        return
    site.spawner["node_address"] = (match[1] or match[3] or "", match[2] or match[4] or "")
    site.say(setting.line, setting.full_name, Level.CHANGED, "`c.SlurmContainerSpawner.node_address`")


def _submission(last: dict[str, Setting], site: Site) -> None:
    """Write how jobs are submitted; without exec_prefix batchspawner takes sudo."""
    prefix = last.get("exec_prefix")
    text = prefix.value if prefix is not None and isinstance(prefix.value, str) else "sudo"
    commands = [last[name] for name in ("batch_submit_cmd", "batch_query_cmd", "batch_cancel_cmd") if name in last]
    said = " ".join([text, *(str(setting.value) for setting in commands if isinstance(setting.value, str))])
    if match := re.search(r"SLURM_CONF=(/\S+)", said):
        site.slurm["slurm_conf"] = match[1]
    if match := re.search(r"(?:SLURM_CLUSTERS=|-M +|--clusters?=)([\w.-]+)", said):
        site.slurm.setdefault("cluster", match[1])
    match = re.search(r"(/\S+)/bin/(sbatch|squeue|scancel)\b", said)
    if match and match[1] not in ("/usr", "/usr/local"):
        site.slurm["slurm_prefix"] = match[1]
    direct = prefix is not None and isinstance(prefix.value, str) and "sudo" not in said
    site.slurm["submit_via"] = "direct" if direct else "sudo"
    if not direct:
        site.slurm["submit_command"], site.slurm["jobs_command"] = HELPERS
    helper = "two helpers and their sudo rules: docs/howto/submit-as-the-user.md"
    for setting in ([prefix] if prefix is not None else []) + commands:
        if isinstance(setting.value, Unknown):
            continue  # said already
        if re.search(r"\bssh\b", str(setting.value)):
            sentence = "the hub's machine runs Slurm's commands itself, without ssh: install them there, and " + helper
            site.say(setting.line, setting.full_name, Level.LOOK, sentence)
        elif setting.name == "exec_prefix" and direct:
            sentence = "`c.CarmeSlurm.submit_via = 'direct'`: the hub runs as root, or as the only user that it serves"
            site.say(setting.line, setting.full_name, Level.CHANGED, sentence)
        elif setting.name in ("exec_prefix", "batch_submit_cmd"):
            site.say(
                setting.line, setting.full_name, Level.CHANGED, f"`c.CarmeSlurm.submit_via = 'sudo'`, with {helper}"
            )
        else:
            site.say(setting.line, setting.full_name, Level.DROPPED, _ONE_QUERY)


# -- profiles ----------------------------------------------------------------------------------------------------------


def profiles_of(requests: Requests, site: Site, *, file: str = "") -> list[dict[str, object]]:
    """Return the profiles that these requests make: one, or one for each partition of a list.

    What cannot be in a profile is said, and left out.
    """
    values: dict[str, str] = {}
    untyped = 0
    for name, request in requests.values.items():
        text, line, full = request.text, request.line, request.setting
        if not text:
            continue
        if name == "req_gres":
            match = re.fullmatch(r"(?:gres/)?gpu(?::([A-Za-z][\w.-]*))?(?:[:=](\d+))?", text)
            if match is None:
                site.say(line, full, Level.LOOK, f"{text} is no request for GPUs by type: write gpu:TYPE:COUNT", file)
                continue
            kind, count = match[1], int(match[2] or 1)
            if count == 0:
                continue
            values[name] = f"gpu:{kind or GPU_TYPE_TODO}:{count}"
            untyped = 0 if kind else line or 1
        elif name == "req_nodes":
            level = Level.DROPPED if text == "1" else Level.LOOK
            site.say(line, full, level, "a session has one node" if text == "1" else KEPT[name], file)
            continue
        elif name == "req_ngpus":
            if text.isdecimal() and int(text) and "req_gres" not in values:
                values["req_gres"] = f"gpu:{GPU_TYPE_TODO}:{text}"
                untyped = line or 1
            continue
        elif not _is_valid(name, text):
            site.say(line, full, Level.LOOK, f"{text!r} is not as Slurm writes it; Carme Hub's default is taken", file)
            continue
        else:
            values[name] = text
        site.say(line, full, Level.CHANGED, KEPT.get(name, "in the profile"), file)
    if untyped:
        sentence = f"GPUs have a type here, as in gres.conf (`sinfo -o '%P %G'`): replace {GPU_TYPE_TODO}"
        site.say(untyped, "GPUs without a type", Level.LOOK, sentence, file)
    partitions = [name for name in values.pop("req_partition", "").split(",") if name] or [""]
    if len(partitions) > 1:
        request = requests.values["req_partition"]
        sentence = "one profile for each partition: a profile has one"
        site.say(request.line, request.setting, Level.CHANGED, sentence, file)
    return [profile_of({**values, "req_partition": partition}) for partition in partitions]


def _is_valid(name: str, text: str) -> bool:
    try:
        if name == "req_runtime":
            minutes_of(text)
        elif name == "req_memory":
            gib_of(text)
        elif name == "req_nprocs":
            return text.isdecimal() and int(text) > 0
        elif name in ("req_partition", "req_account", "req_qos", "req_reservation"):
            return bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+,-]{0,127}", text))
    except ConfigError:
        return False
    return True


def add_profiles(
    found: BatchSettings, site: Site, *, name: str = "", key: str = "", comments: Iterable[str] = ()
) -> None:
    """Add the profiles of these settings to the site, with the images of their script."""
    profiles = profiles_of(found.requests, site)
    if not any(request.text for request in found.requests.values.values()):
        sentence = "no partition, time, CPUs or memory can be read: the profile has Carme Hub's defaults"
        site.say(0, "profile_list", Level.LOOK, sentence)
        comments = [*comments, f"{TODO}: {sentence}"]
    for data in profiles:
        shown = name or "Notebook"
        if len(profiles) > 1:
            shown = f"{shown} ({data['partition']})"
        data = {**data, "display_name": shown, "slug": key or shown}
        data.pop("default", None)
        if not name:
            data["description"] = "A notebook on a compute node."
        else:
            data.pop("description", None)
        if found.images:
            data["images"] = list(dict.fromkeys(found.images))
        todo = [f"{TODO}: replace {GPU_TYPE_TODO} by the type in gres.conf"] if GPU_TYPE_TODO in repr(data) else []
        site.add_profile(data, [*comments, *todo])
