"""Open OnDemand's Jupyter app: its form and its submission make profiles, the containers of its scripts make images."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from carme_hub.cli.convert.findings import Level
from carme_hub.cli.convert.reading.ondemand_app import App, Attribute, FormOption, SubmitOption
from carme_hub.cli.convert.reading.shell import Option
from carme_hub.cli.convert.site import FALLBACK, GPU_TYPE_TODO, TODO, Site, limit
from carme_hub.errors import ConfigError
from carme_hub.spawners.slurm.batchspawner_names import gib_of, minutes_of

from .batch_script import Requests, map_items
from .batch_settings import HELPERS
from .ondemand_images import map_images

#: What becomes of the attributes that Open OnDemand itself knows, and of options of the submission.
ONDEMAND: dict[str, tuple[Level, str]] = {
    "bc_num_hours": (Level.CHANGED, "`time_minutes` of the profile"),
    "bc_num_slots": (Level.CHANGED, "`cpus` of the profile where the submission takes CPUs from it; else 1 node"),
    "bc_queue": (Level.CHANGED, "`partition` of the profile; one profile for each choice"),
    "auto_queues": (Level.LOOK, "write a profile for each partition: the old form asked Slurm"),
    "bc_account": (Level.CHANGED, "the form's account: users choose among their Slurm accounts"),
    "auto_accounts": (Level.CHANGED, "the form's account: users choose among their Slurm accounts"),
    "bc_email_on_started": (Level.DROPPED, "the page shows when a session starts"),
    "bc_vnc_resolution": (Level.DROPPED, "there is no desktop"),
    "node_type": (Level.CHANGED, "one profile for each choice"),
    "num_gpus, gpu_type": (Level.CHANGED, "`gpus` of the profile, with their types"),
    "cluster": (Level.CHANGED, "`c.CarmeSlurm.cluster`: a hub serves one cluster"),
    "accounting_id": (Level.CHANGED, "the form's account"),
    "queue_name": (Level.CHANGED, "`partition` of the profile"),
    "reservation_id": (Level.CHANGED, "`reservation` of a profile, or a booking"),
    "native": (Level.CHANGED, "limits of the profile, `slurm_extra`; read without running Ruby"),
}
_CPUS = ("cpus-per-task", "ntasks", "ntasks-per-node")
_ACCOUNT = ("account", "accounting_id")
_PARTITION = ("partition", "queue_name")
_GPUS = ("gres", "gpus", "gpus-per-node", "gpus_per_node")
#: What a session has, and the least that it may have, where the form says neither.
_USUAL = {"cpus": 1, "memory_gib": 4, "time_minutes": 60}
_LEAST = {"cpus": 1, "memory_gib": 1, "time_minutes": 5}
_QUIET = re.compile(
    r"(use_)?(jupyter)?lab(_switch)?|jupyterlab.*|mode|jupyter_interface|.*e?mail.*|use_core_mode|classroom"
)
_HAS_GPU = re.compile("gpu", re.IGNORECASE)
_FOLDER = re.compile(r".*(dir|folder|root).*|notebook_root")


@dataclass
class _Resources:
    """Which attribute, or which constant, each resource comes from."""

    constants: dict[str, tuple[str, int]] = field(default_factory=dict)
    attributes: dict[str, Attribute] = field(default_factory=dict)
    memory_unit: str = "M"
    used: set[str] = field(default_factory=set)


def map_app(app: App, site: Site) -> None:
    """Say and do what becomes of an app."""
    if app.clusters:
        site.slurm["cluster"] = app.clusters[0]
        site.say(0, "cluster", *ONDEMAND["cluster"])
        if len(app.clusters) > 1:
            others = ", ".join(app.clusters[1:])
            site.say(
                0,
                "cluster",
                Level.LOOK,
                f"a hub serves one cluster: {app.clusters[0]}; {others} need hubs of their own",
            )
    site.slurm["submit_via"], (site.slurm["submit_command"], site.slurm["jobs_command"]) = "sudo", HELPERS
    found = _Resources()
    for option in app.submit:
        _map_submit(option, app, found, site)
    _from_names(app, found)
    images = map_images(app, site, found.used)
    data = _profile(app, found, site)
    if images:
        data["images"] = images
    _split(app, found, data, site)
    for name in dict.fromkeys([*app.form, *app.attributes]):
        if name not in found.used:
            _say_other(name, app, site)


# -- the submission ----------------------------------------------------------------------------------------------------


def _map_submit(option: SubmitOption, app: App, found: _Resources, site: Site) -> None:
    """Note where a resource comes from; say what is none."""
    key = {
        **dict.fromkeys(_CPUS, "cpus"),
        **dict.fromkeys(_PARTITION, "partition"),
        **dict.fromkeys(_ACCOUNT, "account"),
    }
    key |= {"mem": "memory_gib", "time": "time_minutes", "wall_time": "time_minutes", "qos": "qos"}
    key |= {"reservation": "reservation", "reservation_id": "reservation"}
    named = [app.attributes.get(name) or Attribute(name, 0) for name in option.attributes]
    for attribute in named:
        found.used.add(attribute.name)
    constant = re.sub(r"<%=.*?%>", "", option.text).strip()
    file = app.submit_file
    if option.name in _GPUS:
        _gpu_request(option, named, found)
    elif option.name in key:
        what = key[option.name]
        if named:
            found.attributes.setdefault(what, named[0])
            if what == "memory_gib":
                found.memory_unit = "G" if constant[-1:].upper() == "G" or re.search(r"\*\s*1024", option.text) else "M"
            line = named[0].line
            site.say(line, named[0].name, Level.CHANGED, _where(what), app.form_file if line else file)
        elif constant and not (what == "cpus" and "cpus" in found.constants):
            found.constants[what] = (constant, option.line)
            site.say(option.line, f"--{option.name} {constant}", Level.CHANGED, _where(what), file)
    elif option.name in ("nodes", "email_on_started", "email", "job_name", "job-name"):
        if option.name == "nodes" and not named and constant not in ("", "1"):
            site.say(option.line, f"--nodes {constant}", Level.LOOK, "a notebook runs on one node", file)
    elif named or "<%" in option.text:
        site.say(
            option.line, f"--{option.name}", Level.LOOK, "its value is computed; slurm_extra has constant options", file
        )
    else:
        requests = Requests()
        map_items([_as_option(option, constant)], {}, site, requests, None, file)


def _as_option(option: SubmitOption, constant: str) -> Option:
    return Option(option.line, option.name.replace("_", "-"), constant)


def _gpu_request(option: SubmitOption, named: list[Attribute], found: _Resources) -> None:
    kinds = [a for a in named if "type" in a.name or any(re.search(r"[a-z]\d", o.value) for o in a.options)]
    counts = [a for a in named if a not in kinds]
    if kinds:
        found.attributes.setdefault("gpu_type", kinds[0])
    if counts:
        found.attributes.setdefault("gpus", counts[0])
    constant = re.sub(r"<%=.*?%>", "", option.text)
    if match := re.match(r"(?:gpu:)?([A-Za-z][\w.-]*):?(\d*)$", constant.replace("gpu:", "", 1)):
        found.constants["gpu_type"] = (match[1], option.line)
    if not counts and (match := re.search(r"(\d+)$", constant)):
        found.constants["gpus"] = (match[1], option.line)


def _where(what: str) -> str:
    return {"account": "the form's account: users choose among their Slurm accounts"}.get(
        what, f"`{what}` of the profile"
    )


def _from_names(app: App, found: _Resources) -> None:
    """Take attributes by their usual names where the submission does not say what they are for."""
    usual = {
        "time_minutes": r"bc_num_hours|.*(hours|walltime|duration|custom_time)",
        "partition": r"bc_queue|auto_queues.*|.*(partition|queue)",
        "account": r"bc_account|auto_accounts|account|project",
        "gpus": r"(custom_|bc_)?(num_)?gpus?(_count)?|global_gpus|gpu_count",
        "gpu_type": r".*gpu_?type",
        "cpus": r"(custom_|bc_|global_)?(num_)?(cores|cpus)",
        "memory_gib": r"(custom_|bc_num_)?mem(ory)?(_gb|_per_node)?",
        "reservation": r".*reservation",
    }
    for what, pattern in usual.items():
        if what in found.attributes or what in found.constants:
            continue
        name = next((n for n in [*app.form, *app.attributes] if re.fullmatch(pattern, n) and n not in found.used), "")
        if name:
            found.attributes[what] = app.attributes.get(name) or Attribute(name, 0)
            found.used.add(name)


# -- the profile -------------------------------------------------------------------------------------------------------


def _profile(app: App, found: _Resources, site: Site) -> dict[str, Any]:
    """Return the profile that every choice of the form shares."""
    data: dict[str, Any] = {"display_name": app.title or "Jupyter", "slug": "jupyter"}
    missing: list[str] = []
    for what in ("cpus", "memory_gib", "time_minutes"):
        data[what] = _limit(what, found, site, missing)
    if missing:
        sentence = f"{', '.join(missing)}: the old form sets no maximum; the profile has a small one of ours"
        site.say(0, "attributes", Level.LOOK, sentence)
        data["_todo"] = f"{TODO}: {', '.join(missing)}: the old form sets no maximum; these are small ones of ours"
    if gpus := _gpus(found, site):
        data["gpus"] = gpus
    for what in ("partition", "qos", "reservation"):
        constant, attribute = found.constants.get(what), found.attributes.get(what)
        if constant is not None:
            data[what] = constant[0]
        elif attribute is not None and attribute.value and not attribute.options:
            data[what] = attribute.value
            if not attribute.fixed:
                sentence = (
                    f"users could write another {what}; the profile has {attribute.value}: give each one a profile"
                )
                site.say(attribute.line, attribute.name, Level.LOOK, sentence)
        elif attribute is not None and not attribute.options and what == "partition":
            site.say(attribute.line, attribute.name, *ONDEMAND["auto_queues"])
    return data


def _limit(what: str, found: _Resources, site: Site, missing: list[str]) -> dict[str, int]:
    constant, attribute = found.constants.get(what), found.attributes.get(what)
    if constant is not None and (number := _number(what, constant[0], found)) is not None:
        return limit(number, None, _LEAST[what])
    if attribute is None:
        missing.append(what)
        return limit(FALLBACK[what], _USUAL[what], _LEAST[what])
    if attribute.line and not attribute.fixed:
        site.say(attribute.line, attribute.name, Level.CHANGED, f"`{what}` of the profile")
    name = f"{what}/hours" if what == "time_minutes" and _in_hours(attribute) else what
    numbers = [n for o in attribute.options if (n := _number(name, o.value, found)) is not None]
    most = _number(name, str(int(attribute.most)), found) if attribute.most else max(numbers, default=None)
    default = _number(name, attribute.value, found) if attribute.value else min(numbers, default=None)
    if most is None and attribute.fixed and default is not None:
        return limit(default, None, _LEAST[what])
    if most is None:
        missing.append(what)
        most = max(FALLBACK[what], default or 0)
    least = (_number(name, str(int(attribute.least)), found) if attribute.least else None) or _LEAST[what]
    return limit(most, default or max(least, _USUAL[what]), min(least, default or least))


def _in_hours(attribute: Attribute) -> bool:
    return "hour" in attribute.name or attribute.most is not None


def _number(what: str, text: str, found: _Resources) -> int | None:
    """Return a value in the profile's unit, rounded up; None where it is no number."""
    try:
        if what == "time_minutes/hours" and re.fullmatch(r"\d+(\.\d+)?", text):
            return max(1, round(float(text) * 60))
        if what.startswith("time_minutes"):
            return minutes_of(text)
        if what == "memory_gib":
            return gib_of(text + (found.memory_unit if text.isdecimal() else ""))
        return int(text) if text.isdecimal() and int(text) > 0 else None
    except ConfigError:
        return None


def _gpus(found: _Resources, site: Site) -> dict[str, Any] | None:
    count, kind = found.attributes.get("gpus"), found.attributes.get("gpu_type")
    constant, typed = found.constants.get("gpus"), found.constants.get("gpu_type")
    if count is None and constant is None and kind is None:
        return None
    types = (
        [typed[0]]
        if typed
        else [o.value for o in kind.options if o.value.lower() not in ("any", "none", "")]
        if kind
        else []
    )
    types = [name for name in types if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name)]
    if kind is not None and kind.line:
        site.say(kind.line, kind.name, Level.CHANGED, "types of `gpus` of the profile")
    if not types:
        types = [GPU_TYPE_TODO]
        at = count.line if count is not None else constant[1] if constant is not None else 0
        sentence = f"GPUs have a type here, as in gres.conf (`sinfo -o '%P %G'`): replace {GPU_TYPE_TODO}"
        site.say(at, count.name if count is not None else "GPUs", Level.LOOK, sentence)
    elif count is not None and count.line:
        site.say(count.line, count.name, Level.CHANGED, "`gpus` of the profile")
    if constant is not None and count is None:
        number = int(constant[0])
        return {"types": types, "min": number, "max": number, "default": number}
    numbers = [int(o.value) for o in count.options if o.value.isdecimal()] if count else []
    value = int(count.value) if count is not None and count.value.isdecimal() else 0
    if count is not None and count.fixed:
        return {"types": types, "min": value, "max": value, "default": value} if value else None
    most = int(count.most) if count is not None and count.most else max(numbers, default=max(value, 1))
    return {"types": types, "min": 0, "max": most, "default": min(value, most)} if most else None


# -- profiles for the choices of one list ------------------------------------------------------------------------------


def _split(app: App, found: _Resources, data: dict[str, Any], site: Site) -> None:
    """Add one profile, or one for each choice of a partition or a type of node."""
    todo = data.pop("_todo", "")
    comments = [todo] if todo else []
    if GPU_TYPE_TODO in repr(data.get("gpus", "")):
        comments.append(f"{TODO}: replace {GPU_TYPE_TODO} by the type in gres.conf")
    queue = found.attributes.get("partition")
    nodes = app.attributes.get("node_type")
    if queue is not None and queue.options:
        site.say(queue.line, queue.name, *ONDEMAND["bc_queue"])
        for option in queue.options:
            own = {
                "partition": option.value,
                "display_name": f"{data['display_name']}: {option.label}",
                "slug": option.value,
            }
            site.add_profile({**data, **own}, [f"line {option.line}: {option.label}", *comments])
    elif nodes is not None and nodes.options:
        found.used.add("node_type")
        site.say(nodes.line, nodes.name, *ONDEMAND["node_type"])
        # Where some are for GPUs, the form shows the number of GPUs for those alone.
        some = any(_HAS_GPU.search(option.value + option.label) for option in nodes.options)
        without = {name: value for name, value in data.items() if name != "gpus"}
        rest = [comment for comment in comments if GPU_TYPE_TODO not in comment]
        for option in nodes.options:
            if some and not _HAS_GPU.search(option.value + option.label):
                _node_type(app, option, without, rest, site)
            else:
                _node_type(app, option, data, comments, site)
    else:
        site.add_profile(data, comments)


def _node_type(app: App, option: FormOption, data: dict[str, Any], comments: list[str], site: Site) -> None:
    cluster = app.clusters[0] if app.clusters else ""
    if str(option.data.get(f"data-option-for-{cluster}", "true")).lower() == "false":
        site.say(option.line, f"node_type {option.value}", Level.DROPPED, f"the form does not offer it on {cluster}")
        return
    own: dict[str, Any] = {"display_name": f"{data['display_name']}: {option.label}", "slug": option.value}
    most = [
        int(value)
        for key, value in option.data.items()
        if key.startswith("data-max") and re.search(r"ppn|core|cpu", key) and str(value).isdecimal()
        if not cluster or not any(f"-{other}" in key for other in app.clusters[1:])
    ]
    if most:
        own["cpus"] = limit(max(most), data["cpus"]["default"])
    notes = [f"line {option.line}: {option.label}", *comments]
    for each in app.cases.get(option.value, ()):
        if each.name == "partition" and each.value:
            own["partition"] = each.value
        else:
            sentence = f"--{each.name}={each.value or ''} is for this choice alone; a profile names a partition"
            site.say(option.line, f"node_type {option.value}", Level.LOOK, sentence)
            notes.append(f"{TODO}: name the partition of these nodes: {sentence}")
    if _HAS_GPU.search(option.value + option.label) and "gpus" in data:
        own["gpus"] = {**data["gpus"], "min": max(1, data["gpus"]["min"]), "default": max(1, data["gpus"]["default"])}
    elif _HAS_GPU.search(option.value + option.label):
        own["gpus"] = {"types": [GPU_TYPE_TODO], "min": 1, "max": 1, "default": 1}
        notes.append(f"{TODO}: replace {GPU_TYPE_TODO} by the type in gres.conf")
        sentence = f"GPUs have a type here, as in gres.conf (`sinfo -o '%P %G'`): replace {GPU_TYPE_TODO}"
        site.say(option.line, f"node_type {option.value}", Level.LOOK, sentence)
    site.add_profile({**data, **own}, notes)


def _say_other(name: str, app: App, site: Site) -> None:
    """Say what becomes of an attribute that is no resource and no image."""
    attribute = app.attributes.get(name)
    line = attribute.line if attribute is not None else 0
    if name in ONDEMAND:
        level, sentence = ONDEMAND[name]
        site.say(line, name, Level.DROPPED if name == "bc_num_slots" else level, sentence)
    elif _QUIET.fullmatch(name):
        site.say(line, name, Level.DROPPED, "JupyterLab is what starts; the page shows when it does")
    elif _FOLDER.fullmatch(name):
        site.say(line, name, Level.CHANGED, "the form's working folder")
    elif re.search(r"modules?|version|conda|env|python", name):
        site.say(line, name, Level.LOOK, "make an image of it (docs/howto/add-an-image.md), and list it in `images`")
    elif attribute is not None and attribute.fixed:
        site.say(line, name, Level.DROPPED, "a value for the app's scripts")
    else:
        site.say(line, name, Level.LOOK, "a field of your own: `profile_options`, or a profile field of a package")
