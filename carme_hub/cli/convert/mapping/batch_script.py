"""What becomes of the commands of a script: options of sbatch, containers, modules, variables, and the rest."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from carme_hub.cli.convert.findings import Level
from carme_hub.cli.convert.reading.shell import (
    Activation,
    Container,
    Export,
    Item,
    Module,
    Option,
    read_shell,
)
from carme_hub.cli.convert.site import TODO, Site
from carme_hub.containers.check import check_environ
from carme_hub.errors import ContainerError

#: Options of sbatch with a place in a profile, and batchspawner's name for it.
IN_PROFILE = {
    **{"partition": "req_partition", "time": "req_runtime", "cpus-per-task": "req_nprocs", "ntasks": "req_nprocs"},
    **{"ntasks-per-node": "req_nprocs", "mem": "req_memory", "gres": "req_gres", "account": "req_account"},
    **{"qos": "req_qos", "reservation": "req_reservation", "nodes": "req_nodes", "gpus": "req_ngpus"},
    **{"gpus-per-node": "req_ngpus", "gpus-per-task": "req_ngpus"},
}
#: Options that Carme Hub sets itself for each job, or that have no effect on a session.
OURS = (
    *(
        "job-name",
        "output",
        "error",
        "chdir",
        "workdir",
        "export",
        "get-user-env",
        "open-mode",
        "parsable",
        "wait-all-nodes",
    ),
    *("no-requeue", "requeue", "mail-type", "mail-user", "signal", "comment", "clusters", "cluster", "nodefile"),
)
_SECRET = re.compile("secret|token|passw|api_?key", re.IGNORECASE)
_LISTED = "`slurm_extra`, for every session; with submit_via = 'sudo' name it in carme-submit.json's `extra`, too"
_IN_IMAGE = "what it provides belongs in an image (docs/howto/add-an-image.md); nodes' modules are not in a container"


@dataclass(frozen=True, slots=True)
class RequestedValue:
    """A value of ``req_*``, and where it stands."""

    text: str
    line: int
    setting: str


@dataclass
class Requests:
    """The values of ``req_*`` that apply, by name; later ones replace earlier ones."""

    values: dict[str, RequestedValue] = field(default_factory=dict)

    def set(self, name: str, value: object, line: int, setting: str) -> None:
        """Set one; a number is as good as its text."""
        text = "" if value is None else str(value).strip()
        if name == "req_ngpus" and not text.isdecimal() and text:  # --gpus=a100:2
            name, text = "req_gres", f"gpu:{text}"
        self.values[name] = RequestedValue(text, line, setting)

    def take(self, other: Requests) -> None:
        """Take those that others have set."""
        self.values.update(other.values)

    def copy(self) -> Requests:
        """Return requests with the same values."""
        return Requests(dict(self.values))


@dataclass
class Script:
    """What a script asks for: values of ``req_*``, names of images, modules."""

    requests: Requests = field(default_factory=Requests)
    images: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)


def map_script(
    text: str, lines: Mapping[int, int], site: Site, setting: str, line: int, file: str = "", *, of_one: str = ""
) -> Script:
    """Say and do what becomes of a script; ``lines`` has the file's line of each of its lines."""
    items = read_shell(text)
    script = Script()
    site.say(line, setting, Level.CHANGED, "the batch script is constant here; what this one does is below", file)
    places = {number: lines.get(number, line) for number in range(1, text.count("\n") + 2)}
    map_items(items, places, site, script.requests, script, file, of_one=of_one)
    return script


def map_items(
    items: Iterable[Item],
    lines: Mapping[int, int],
    site: Site,
    requests: Requests,
    script: Script | None = None,
    file: str = "",
    *,
    of_one: str = "",
) -> None:
    """Say and do what becomes of each command; ``requests`` receives what has a place in a profile.

    Args:
        of_one: the profile that the commands are of, "" = they are of every session.
    """
    for item in items:
        line = lines.get(item.line, item.line)
        if isinstance(item, Option):
            _option(item, line, site, requests, file, of_one)
        elif isinstance(item, Module):
            site.say(line, f"module load {item.names}", Level.LOOK, _IN_IMAGE, file)
            if script is not None:
                script.modules += item.names.split()
        elif isinstance(item, Activation):
            sentence = "the environment's packages belong in an image (docs/howto/add-an-image.md)"
            site.say(line, _short(item.command), Level.LOOK, sentence, file)
        elif isinstance(item, Export):
            _variable(item, line, site, file, of_one)
        elif isinstance(item, Container):
            name = map_container(item, line, site, file)
            if script is not None and name:
                script.images.append(name)
        else:
            sentence = "no command runs before the server; it belongs in the image, or in a prolog of Slurm"
            if item.command.startswith("cd "):
                sentence = "users choose the folder in the form; `working_folder` in a slurm_override sets it"
            site.say(line, _short(item.command), Level.LOOK, sentence, file)


def _option(item: Option, line: int, site: Site, requests: Requests, file: str, of_one: str) -> None:
    shown = f"--{item.name}={item.value}" if item.value else f"--{item.name}"
    if item.value is None and item.name in (*IN_PROFILE, *OURS):
        return  # a setting gives its value
    if item.name in IN_PROFILE and item.value:
        name = IN_PROFILE[item.name]
        if name == "req_nprocs" and item.name != "cpus-per-task" and (item.value == "1" or name in requests.values):
            return  # one task, as a notebook is
        requests.set(name, item.value, line, shown)
    elif item.name in OURS:
        site.say(line, shown, Level.DROPPED, "Carme Hub sets it itself", file)
    elif of_one and item.value is not None and item.name != "mem-per-cpu":
        sentence = f"of {of_one} alone, and `slurm_extra` is for every session: name a partition or QOS that has it"
        site.say(line, shown, Level.LOOK, sentence, file)
        site.notes.append(f"{TODO} (line {line}): {shown}: {sentence}")
    elif item.name == "exclusive":
        site.extra["exclusive"] = item.value or ""
        site.say(line, shown, Level.CHANGED, _LISTED, file)
    elif item.name == "mem-per-cpu":
        site.say(line, shown, Level.LOOK, "memory is by node here: `memory_gib` of the profile", file)
    elif item.value is None:
        site.say(
            line, shown, Level.LOOK, "its value is not a constant; options for every session are in slurm_extra", file
        )
    else:
        site.extra[item.name] = item.value
        site.say(line, shown, Level.CHANGED, _LISTED, file)


def _variable(item: Export, line: int, site: Site, file: str, of_one: str) -> None:
    try:
        check_environ({item.name: item.value})
    except ContainerError as error:
        site.say(line, f"export {item.name}", Level.LOOK, f"it is not passed into a container: {error}", file)
        return
    if item.name in ("PATH", "HOME", "USER") or item.name.startswith(("SLURM_", "JUPYTERHUB_", "SRUN_", "SBATCH_")):
        site.say(
            line, f"export {item.name}", Level.LOOK, "the session's own; what is on the path belongs in the image", file
        )
        return
    if _SECRET.search(item.name):
        sentence = "a secret: set it in `c.Spawner.environment`, read from a file that only the hub's user can read"
        site.say(line, f"export {item.name}", Level.LOOK, sentence, file)
        return
    if of_one and site.environment.get(item.name, item.value) != item.value:
        sentence = f"`container_environment` is for every session, and has another value of it than {of_one}"
        site.say(line, f"export {item.name}", Level.LOOK, sentence, file)
        return
    site.environment[item.name] = item.value
    site.say(line, f"export {item.name}", Level.CHANGED, "`container_environment`, for every session", file)


def map_container(
    item: Container, line: int, site: Site, file: str = "", *, name: str = "", description: str = ""
) -> str:
    """Offer the image of a container, and bind its folders; return the image's name, or "" ."""
    shown = f"{item.runtime} {item.image}".strip()
    if item.runtime not in ("apptainer", "pyxis"):
        sentence = "make an image of it (docs/howto/add-an-image.md), and choose a `container_runtime`"
        site.say(line, shown, Level.LOOK, sentence, file)
        return ""
    name = site.add_image(item.image, name=name, description=description, runtime=item.runtime)
    if name:
        site.say(line, shown, Level.CHANGED, f"the image {name} of `images`, run by {site.runtime}", file)
    else:
        site.say(line, shown, Level.LOOK, "the image is no constant path: name it in `images`", file)
    for bind in item.binds:
        site.add_bind(bind, line, "--bind", file)
    return name


def _short(command: str) -> str:
    """Return a command for a finding: not too long, and without what may be a secret."""
    command = re.sub(r"(?i)((?:secret|token|passw\w*|key)\w*[\"']?\s*[=: ]\s*)\S+", r"\1…", command)
    return command if len(command) <= 60 else f"{command[:57]}…"
