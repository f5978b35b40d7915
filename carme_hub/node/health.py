#!/usr/bin/python3 -IS
# ruff: noqa: T201, UP006, UP022, UP035, UP045, PTH100, PTH103, PTH105, PTH110, PTH118, PTH119, PTH120, PTH123
"""carme-node-health: checks this node, and drains or resumes it in Slurm: slurm.conf's HealthCheckProgram.

It looks at GPUs (lost, uncorrected memory errors, Xid errors), memory and the number of GPUs against slurm.conf, disks
(full, not writable), mounts and programs that must be there. A check is ok, failed, or *unknown* where it could not be
made, which proves nothing. Without an option it acts, as slurmd calls it:

* Something failed: the node is drained, with what failed in words after ``carme-health: `` as its reason. A node that
  somebody else drained, or that is down, is left as it is.
* Everything is ok, twice in a row: the node is resumed where the reason is one of this program's. Nothing else ever is.
* Slurm does not answer: nothing is done.

``--show`` changes nothing and exits with 1 where a check failed, 2 where one is unknown; ``--json`` is for programs.
Settings are in ``/etc/carme-hub/node-health.conf`` (``--config``), which need not be there; ``SETTINGS`` has what may
be there. The Xids of the kernel's log count until somebody resumes the node, or it restarts. carme-health-checks and
carme-nvml lie beside this file. Standard library only, Python 3.6 or later.
"""

import configparser
import json
import os
import re
import shutil
import subprocess
import sys

TYPE_CHECKING = False  # as typing.TYPE_CHECKING
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

    Finding = Tuple[str, str, str]

PREFIX, CONFIG = "carme-health: ", "/etc/carme-hub/node-health.conf"
FAILED, UNKNOWN = "failed", "unknown"
#: Xids that say that the GPU, and not a program, is broken: https://docs.nvidia.com/deploy/xid-errors/
XIDS = "48 61 62 64 74 79 95 119 120 140"
#: Sections, keys and what they are without a file. "slurm": what slurm.conf says of this node; "none": no check.
SETTINGS = {
    "gpus": {"count": "slurm", "ecc": "0", "xid": XIDS, "library": "libnvidia-ml.so.1", "kernel_log": "/dev/kmsg"},
    "memory": {"size": "slurm"},
    "disks": {"full": "/:97", "writable": "/tmp"},  # noqa: S108 - it is asked for, not used
    "mounts": {"there": ""},
    "programs": {"there": ""},
    "slurm": {"scontrol": "", "conf": "", "good_runs": "2", "state": "/run/carme-health"},
}
#: Seconds for one of Slurm's commands; characters of a reason.
SLURM_SECONDS, MOST_REASON = 5.0, 200
_REASON = re.compile(r"\sReason=(.*?)(?:\s(?:Comment|Extra|ResumeAfterTime|ReservationName)=.*)?$")
_SET_BY = re.compile(r"\s*\[[^\[\]\s]*@[^\[\]]*\]\s*$")


class Wrong(Exception):
    """A setting or the command line is wrong; the message says what to write."""


def read_settings(path: str, named: bool) -> "Dict[str, Dict[str, str]]":
    """Return the settings of a file over the usual ones.

    Args:
        named: the file must be there.
    """
    found = {section: dict(keys) for section, keys in SETTINGS.items()}
    parser = configparser.ConfigParser(interpolation=None, inline_comment_prefixes=("#",), delimiters=("=",))
    try:
        with open(path, encoding="utf-8") as file:
            parser.read_file(file)
    except FileNotFoundError:
        if named:
            raise Wrong(f"{path}: there is no such file") from None
        return found
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        raise Wrong("{} cannot be read: {}".format(path, " ".join(str(error).split()))) from None
    for section in parser.sections():
        for key, value in parser.items(section):
            if key not in found.get(section, {}):
                known = ", ".join(found.get(section) or found)
                raise Wrong(f"{path}: there is no [{section}] {key}. Known: {known}.")
            found[section][key] = value.strip()
    for section, key in (("gpus", "count"), ("gpus", "ecc"), ("memory", "size"), ("slurm", "good_runs")):
        value = found[section][key]
        if not (value.isdigit() or (value == "none" and key != "good_runs") or (value == "slurm" and key != "ecc")):
            raise Wrong(f"{path}: [{section}] {key} is a number, or one of its words, not {value!r}")
    for word in found["disks"]["full"].split():
        if not re.match(r"/.*:\d{1,3}$", word):
            raise Wrong(f"{path}: [disks] full is a list such as /:97 /tmp:90, not {word!r}")
    return found


# -- Slurm ------------------------------------------------------------------------------------------------------------


class Slurm:
    """This node in Slurm, by scontrol. ``node`` is what ``show node`` says, {} where it does not answer."""

    def __init__(self, name: str, scontrol: str) -> None:
        search = os.environ.get("PATH", "") + ":/usr/local/bin:/usr/bin:/bin:/opt/slurm/bin"
        self.name, self._scontrol = name, scontrol or shutil.which("scontrol", path=search) or "scontrol"
        self.node = self.read()

    def read(self) -> "Dict[str, str]":
        """Return what Slurm says now of the node, by its words; {} where it does not answer."""
        answer = self._run("show", "node", "-o", self.name)
        if answer is None or f"NodeName={self.name} " not in answer:
            return {}
        self.node = {}
        for word, value in re.findall(r"(?:^|\s)(State|Gres|RealMemory)=(\S*)", answer):
            self.node.setdefault(word, value)
        reason = _REASON.search(answer.strip())
        self.node["Reason"] = _SET_BY.sub("", reason.group(1)) if reason else ""
        return self.node

    @property
    def drained(self) -> bool:
        """Whether nothing new starts on it by a drain."""
        return "DRAIN" in self.node.get("State", "").upper()

    @property
    def ours(self) -> bool:
        """Whether this program drained it."""
        return self.drained and self.node.get("Reason", "").startswith(PREFIX)

    def set(self, *words: str) -> str:
        """Change the node; return what Slurm said against it, "" = it is done."""
        answer = self._run("update", "NodeName=" + self.name, *words)
        return "" if answer is not None else "Slurm did not take it; is this root?"

    def _run(self, *argv: str) -> "Optional[str]":
        try:
            done = subprocess.run(
                [self._scontrol, *argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                timeout=SLURM_SECONDS, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


def act(slurm: Slurm, found: "List[Finding]", state: "Dict[str, Any]", good_runs: int) -> str:
    """Drain or resume the node by what was found; return what was done, "" = nothing."""
    failed = [words for _, result, words in found if result == FAILED]
    state["good"] = 0 if failed or any(result == UNKNOWN for _, result, _ in found) else int(state.get("good", 0)) + 1
    if failed:
        reason = (PREFIX + "; ".join(failed))[:MOST_REASON]
        if slurm.ours and slurm.node.get("Reason") == reason:
            return "It stays drained."
        if not slurm.read():  # the checks took a while, and an administrator may have acted meanwhile
            return "Slurm does not answer. Nothing was changed."
        down = slurm.node.get("State", "").upper().startswith("DOWN")
        if not slurm.ours and (slurm.drained or down):
            return "It is out of service already, and is left as it is."
        problem = slurm.set("State=DRAIN", "Reason=" + reason)
        state["drained"] = state.get("drained") or not problem
        return problem or "It is drained."
    if not slurm.ours or state["good"] < good_runs:
        return f"It stays drained until it was well {good_runs} times in a row." if slurm.ours else ""
    if not slurm.read() or not slurm.ours:
        return "Somebody else has changed it meanwhile."
    problem = slurm.set("State=RESUME")
    state["drained"] = bool(problem)
    return problem or "It is resumed."


def note_resumed(slurm: Slurm, state: "Dict[str, Any]", xids: "List[Tuple[str, int, int]]") -> None:
    """Accept the Xids so far (of ``kernel_xids``) where somebody resumed a node that this program had drained."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    if state.get("boot") != boot:  # the kernel's log begins anew
        state.clear()
    state["boot"] = boot
    if state.get("drained") and slurm.node and not slurm.drained:
        state["drained"], state["good"] = False, 0
        state["accepted"] = max([int(state.get("accepted", -1)), *(each[2] for each in xids)])


# -- the program ------------------------------------------------------------------------------------------------------


def load(name: str) -> "Any":
    """Load a program that lies beside this file as a module."""
    here = os.path.dirname(os.path.abspath(__file__))
    path = os.path.join(here, name)
    path = path if os.path.exists(path) else os.path.join(here, name.replace("carme-", "").replace("-", "_") + ".py")
    module = type(os)(name)
    with open(path, encoding="utf-8") as file:
        exec(compile(file.read(), path, "exec"), module.__dict__)  # noqa: S102
    return module


def slurmd_option(name: str) -> str:
    """Return the value of an option of the slurmd that started this program, "" = it has none, or another did."""
    try:
        with open(f"/proc/{os.getppid()}/cmdline", "rb") as file:
            words = file.read().decode("utf-8", "replace").split("\0")
    except OSError:
        return ""
    if os.path.basename(words[0]) != "slurmd" or name not in words[:-1]:
        return ""
    return words[words.index(name) + 1]


def node_name() -> str:
    """Return this node's name in Slurm: as slurmd says, or the machine's."""
    return os.environ.get("SLURMD_NODENAME") or slurmd_option("-N") or os.uname().nodename.split(".")[0]


def slurm_conf(setting: str) -> str:
    """Return the path of slurm.conf, "" = the usual one; slurmd 22.05 does not pass on where its own is."""
    found = setting or os.environ.get("SLURM_CONF") or slurmd_option("-f")
    if not found:
        try:
            with open(f"/proc/{os.getppid()}/environ", "rb") as file:
                words = file.read().decode("utf-8", "replace").split("\0")
        except OSError:
            return ""
        found = next((word.partition("=")[2] for word in words if word.startswith("SLURM_CONF=")), "")
    return found


def read_state(path: str) -> "Dict[str, Any]":
    """Return what an earlier run has kept: {} where that is nothing, or cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}


def write_state(path: str, state: "Dict[str, Any]") -> None:
    """Keep it for the next run; where that fails, a resumed node counts its old Xids again."""
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        new = f"{path}.{os.getpid()}"
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            json.dump(state, file)
        os.replace(new, path)
    except OSError as error:
        print(f"{path} cannot be written: {error.strerror}", file=sys.stderr)


def options(argv: "List[str]") -> "Dict[str, str]":
    """Return the options of the command line: ``show`` and ``json`` are flags, ``config`` and ``node`` have a value."""
    found, words = {}, list(argv)  # type: Dict[str, str], List[str]
    while words:
        name, _, value = words.pop(0).partition("=")
        if name in ("--show", "--json") and not value:
            found[name[2:]] = "yes"
        elif name in ("--config", "--node") and (value or words):
            found[name[2:]] = value or words.pop(0)
        else:
            raise Wrong("usage: carme-node-health [--show] [--json] [--config FILE] [--node NAME]")
    return found


def main(argv: "List[str]") -> int:
    """Check the node, act where that is wanted, and print what was found; return the exit status."""
    try:
        asked = options(argv)
        settings = read_settings(asked.get("config", CONFIG), "config" in asked)
    except Wrong as error:
        print(f"carme-node-health: {error}", file=sys.stderr)
        return 2
    checks = load("carme-health-checks")
    name = asked.get("node") or node_name()
    os.environ["SLURMD_NODENAME"] = name  # a virtual GPU's driver asks for it
    conf = slurm_conf(settings["slurm"]["conf"])
    if conf:
        os.environ["SLURM_CONF"] = conf
    slurm = Slurm(name, settings["slurm"]["scontrol"])
    path = os.path.join(settings["slurm"]["state"], name + ".json")
    state = read_state(path)
    note_resumed(slurm, state, checks.kernel_xids(settings["gpus"]["kernel_log"]))
    found = checks.all_checks(load("carme-nvml"), settings, slurm.node, state)
    if not slurm.node:
        found.append(("slurm", UNKNOWN, f"Slurm does not answer, or has no node {name}"))
    failed = any(result == FAILED for _, result, _ in found)
    done = ""
    if "show" not in asked:
        done = act(slurm, found, state, int(settings["slurm"]["good_runs"])) if slurm.node else "Nothing was changed."
        write_state(path, state)
    if "json" in asked:
        rows = [{"check": what, "result": result, "words": words} for what, result, words in found]
        print(json.dumps({"node": name, "healthy": not failed, "checks": rows, "done": done}, ensure_ascii=False))
    else:
        for _, result, words in found:
            print(f"{name}: {result}: {words}")
        if done:
            print(f"{name}: {done}")
    # slurmd logs an exit status that is not 0 as a failure of the program itself.
    if "show" not in asked:
        return 0
    return 1 if failed else 2 if any(result == UNKNOWN for _, result, _ in found) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
