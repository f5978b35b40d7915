# ruff: noqa: UP006, UP035, PTH123, PTH208
"""carme-health-checks: the checks of carme-node-health, which lies beside this file and loads it.

Each check runs in a process of its own, since a broken file system or driver may never answer. What it finds is a list
of (what, result, words), where the result is ok, failed, or unknown: it could not be made, which proves nothing.
Standard library only, Python 3.6 or later.
"""

import json
import os
import re
import select
import shutil
import tempfile
import time
from functools import partial

TYPE_CHECKING = False  # as typing.TYPE_CHECKING
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Tuple

    Finding = Tuple[str, str, str]

OK, FAILED, UNKNOWN = "ok", "failed", "unknown"
#: Seconds for all checks, slurmd ends the program after 60; for one of them.
ALL_SECONDS, CHECK_SECONDS = 40.0, 8.0
_XID = re.compile(r"^\d+,(\d+),\d+,[^;]*;.*NVRM: Xid \((?:PCI:)?([^)]*)\): (\d+)", re.MULTILINE)


class Hung(Exception):
    """It gave no answer in time."""


def in_child(seconds: float, work: "Callable[[], Any]", hung: "Dict[str, List[int]]", name: str) -> "Any":
    """Return what ``work`` returns in a child process, as JSON has it; raise ``Hung`` where it does not in time.

    Args:
        hung: by name those children that did not end by KILL; while one is there, no other is started.
    """
    if name in hung:
        if _born(hung[name][0]) == hung[name][1]:
            raise Hung
        del hung[name]
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    text, until = b"", time.monotonic() + seconds
    try:
        while select.select([reader], [], [], max(0.0, until - time.monotonic()))[0]:
            part = os.read(reader, 65536)
            if not part:
                os.waitpid(pid, 0)
                return json.loads(text.decode()) if text else None
            text += part
    finally:
        os.close(reader)
    born = _born(pid)
    os.kill(pid, 9)
    time.sleep(0.2)
    if os.waitpid(pid, os.WNOHANG)[0] == 0:
        hung[name] = [pid, born]
    raise Hung


def _born(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return -1


def gres(text: str) -> "List[Tuple[str, int]]":
    """Return types ("" = none is named) and counts of the GPUs in a node's Gres: ``gpu:a100:4(S:0-1),shard:16``."""
    found = []
    for item in re.sub(r"\([^)]*\)", "", text).split(","):
        words = item.split(":")
        if words[0] == "gpu" and words[-1].isdigit():
            found.append((words[1] if len(words) > 2 else "", int(words[-1])))
    return found


def check_gpus(nvml: "Any", settings: "Dict[str, str]", slurm: "Dict[str, str]", accepted: int) -> "List[Finding]":
    """Return what is found of the GPUs.

    Args:
        nvml: carme-nvml. slurm: what Slurm says of the node. accepted: Xids up to this line of the kernel's log do not
            count.
    """
    there = gres(slurm.get("Gres", ""))
    divided = any(re.match(r"\d+g\.", kind) for kind, _ in there)
    expected = int(settings["count"]) if settings["count"].isdigit() else sum(count for _, count in there)
    if not expected or settings["count"] == "none":
        return []
    try:
        driver = nvml.Driver(settings["library"])
    except (OSError, AttributeError) as error:
        return [("gpus", FAILED, f"NVIDIA's driver does not answer ({error})")]
    seen = driver.devices()
    devices = [each for each in seen if each.uuid]
    found = []  # type: List[Finding]
    lost = len(seen) - len(devices) if divided and not settings["count"].isdigit() else expected - len(devices)
    if lost > 0:
        found.append(("gpus", FAILED, "{} of {} GPUs {} lost".format(lost, expected, "is" if lost == 1 else "are")))
    xids = {int(word) for word in settings["xid"].split() if word.isdigit()}
    for number, device in enumerate(devices):
        minor = device.minor()
        name = f"GPU {number if minor is None else minor}"
        errors = device.ecc_errors() if settings["ecc"] != "none" else None
        if errors is not None and errors > int(settings["ecc"]):
            words = "{} had {} uncorrected memory error{}".format(name, errors, "" if errors == 1 else "s")
            found.append(("ecc", FAILED, words))
        broken = sorted(set(device.xids() or ()) & xids)
        found += [("xid", FAILED, f"{name} reported Xid {each}") for each in broken]
    if xids:
        found += [
            ("xid", FAILED, f"the GPU at {where} reported Xid {xid}")
            for where, xid, number in kernel_xids(settings["kernel_log"])
            if xid in xids and number > accepted
        ]
    return list(dict.fromkeys(found)) or [("gpus", OK, f"{len(devices)} GPUs answer")]


def kernel_xids(path: str) -> "List[Tuple[str, int, int]]":
    """Return the Xids of the kernel's log: where, which, and the number of the line; [] where it cannot be read."""
    text = b""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        while True:
            try:
                part = os.read(file, 8192)
            except BrokenPipeError:  # lines were overwritten while it was read
                continue
            except OSError:  # its end, or it may not be read
                break
            if not part:
                break
            text += part
    finally:
        os.close(file)
    return [(where, int(xid), int(number)) for number, where, xid in _XID.findall(text.decode("utf-8", "replace"))]


def check_memory(settings: "Dict[str, str]", slurm: "Dict[str, str]", meminfo: str = "/proc/meminfo") -> "Finding":
    """Return whether the node has the memory that slurm.conf or the file says."""
    wanted = slurm.get("RealMemory", "0") if settings["size"] == "slurm" else settings["size"]
    with open(meminfo, encoding="utf-8") as file:
        there = int(re.findall(r"MemTotal:\s*(\d+) kB", file.read())[0]) // 1024
    if there < int(wanted):
        return "memory", FAILED, f"it has {there} MiB of memory, and should have {wanted}"
    return "memory", OK, f"{there} MiB of memory"


def check_full(path: str, percent: int) -> "Finding":
    """Return whether a file system is full, of data or of files, or read-only."""
    state = os.statvfs(path)
    for what, total, free in (("space", state.f_blocks, state.f_bavail), ("files", state.f_files, state.f_favail)):
        used = 100 - 100 * free // total if total else 0
        if used >= percent:
            return "disk", FAILED, f"{path} is full ({used} % of its {what})"
    return "disk", OK, f"{path} has room"


def check_writable(path: str) -> "Finding":
    """Return whether files can be made in a folder."""
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"carme")
    except OSError as error:
        return "disk", FAILED, f"{path} cannot be written ({error.strerror})"
    return "disk", OK, f"{path} can be written"


def check_mount(path: str, table: str = "/proc/self/mounts") -> "Finding":
    """Return whether something is mounted on a folder and answers; an automounter mounts it now."""
    try:
        os.listdir(path)
    except OSError as error:
        return "mount", FAILED, f"{path} is not there ({error.strerror})"
    with open(table, encoding="utf-8", errors="replace") as file:
        rows = [line.split(" ") for line in file]
    if not any(len(row) > 2 and row[1].replace("\\040", " ") == path and row[2] != "autofs" for row in rows):
        return "mount", FAILED, f"{path} is not mounted"
    return "mount", OK, f"{path} is mounted"


def check_program(name: str) -> "Finding":
    """Return whether a program, such as the container runtime, is there."""
    if shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/local/bin:/usr/bin:/bin:/usr/sbin") is None:
        return "program", FAILED, f"{name} is not there"
    return "program", OK, f"{name} is there"


def all_checks(
    nvml: "Any", settings: "Dict[str, Dict[str, str]]", slurm: "Dict[str, str]", state: "Dict[str, Any]"
) -> "List[Finding]":
    """Return the findings of all checks. One that gives no answer has failed; one that broke is unknown.

    Args:
        slurm: what Slurm says of the node. state: ``accepted``, and ``hung``, which is kept for the next time.
    """
    until, found = time.monotonic() + ALL_SECONDS, []  # type: float, List[Finding]
    disks, mounts = settings["disks"], settings["mounts"]["there"].split()
    plan = []  # type: List[Tuple[str, str, Callable[[], Any]]]
    for word in disks["full"].split():
        path, _, percent = word.rpartition(":")
        plan.append(("disk", path, partial(_alone, check_full, path, int(percent))))
    plan += [("disk", path, partial(_alone, check_writable, path)) for path in disks["writable"].split()]
    plan += [("mount", path, partial(_alone, check_mount, path)) for path in mounts]
    plan += [("program", each, partial(_alone, check_program, each)) for each in settings["programs"]["there"].split()]
    if settings["memory"]["size"] != "none":
        plan.append(("memory", "memory", partial(_alone, check_memory, settings["memory"], slurm)))
    plan.append(("gpus", "GPUs", partial(check_gpus, nvml, settings["gpus"], slurm, int(state.get("accepted", -1)))))
    for kind, name, work in plan:
        seconds = min(CHECK_SECONDS, until - time.monotonic())
        words = f"{name} gave no answer in time"
        try:
            answer = in_child(seconds, work, state.setdefault("hung", {}), kind + " " + name) if seconds > 0 else None
        except Hung:
            answer = [(kind, FAILED, words)]
        found += [tuple(each) for each in answer] if answer is not None else [(kind, UNKNOWN, words)]
    return found


def _alone(check: "Callable[..., Finding]", *args: "Any") -> "List[Finding]":
    return [check(*args)]
