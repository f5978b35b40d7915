#!/usr/bin/python3 -IS
# ruff: noqa: UP006, UP035, UP045, PTH105, PTH108, PTH123, PTH207
"""carme-report: measures what a job uses on its node, keeps it in the session folder, and sends a summary each minute.

The supervisor of the batch script starts it beside the container as ``carme-report FOLDER``, once the server has had
time to start, and ends it by TERM. It reads its part of the data document (``activity``: address, token, names) and
loads carme-usage, carme-memory, carme-nvml and carme-minutes from the folder. What is written there (each 0600):

* ``usage.ring``: a sample every ten seconds, those of the last day (``Ring``); JupyterLab shows its curves from it.
* ``usage.json``: the newest sample, with the processes of each GPU.
* ``usage-unsent.json``: at the end, the minutes that the service has not accepted yet. The next session of the user
  sends them, so a hub that is away loses none.

The other nodes of a job are measured while ranks run on them: carme-rank starts ``carme-report FOLDER OWN`` there,
which keeps its samples in the folder OWN of the rank, and what is not accepted in ``usage-unsent-NODE.json`` of FOLDER.
Of several on a node, one measures.

Standard library only, Python 3.6 or later.
"""

import glob
import json
import os
import random
import signal
import socket
import struct
import sys
import time

TYPE_CHECKING = False  # as typing.TYPE_CHECKING
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

INTERVAL, MINUTE = 10.0, 60
RING, NOW, UNSENT, WORK = "usage.ring", "usage.json", "usage-unsent.json", "work.json"
#: The GPUs of the job, where carme-rank has left only those of its step in CUDA_VISIBLE_DEVICES.
JOB_DEVICES = "CARME_JOB_DEVICES"
#: Seconds for which counts what the session's server has said of its kernels (``training/server/work.py``).
WORK_SECONDS = 45.0
#: Bytes of a ring's header and of a ring, and the samples of a day.
HEADER_BYTES, RING_BYTES, DAY = 4096, 1 << 20, 8640
#: Seconds for one request, and for the last one; minutes that one request has at most, and that wait at most. The
#: supervisor gives this program 5 s to end.
SEND_SECONDS, LAST_SECONDS, MOST_MINUTES, MOST_WAITING = 3.0, 1.5, 60, 1440
#: Minutes without a try after a failure, by the number of failures.
RESTS = (0, 1, 2, 4)
#: Seconds of a job after which it sends what earlier sessions of its user have left.
LEFTOVERS_AFTER = 120.0
#: Minutes in one file, and the bytes of it that are read: a minute of 16 GPUs takes 3 KB.
MOST_KEPT, LARGEST_LEFTOVER = 240, 1 << 20
#: Variables of a job that has a part of a GPU (shards, MPS): what the driver says of the whole GPU is everybody's.
SHARED_GPUS = ("SLURM_SHARDS_ON_NODE", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
UNKNOWN_32, UNKNOWN_16, UNKNOWN_8 = (1 << 32) - 1, (1 << 16) - 1, (1 << 8) - 1
#: Values of a sample in the order of the ring, each of 32 bits: the first is UTC epoch seconds.
FIELDS = ("at", "cpu", "memory", "read", "written", "received", "sent", "tmp_free")
_GPU = "BBHIB"
_THROTTLE_KNOWN, _THROTTLED, _ECC, _XID = 1, 2, 4, 8


class Ring:
    """The samples of the last day in a file of at most 1 MiB.

    The header is one line of JSON, padded with blanks to 4096 bytes: ``record`` (bytes of one), ``capacity``,
    ``interval`` and what the reporter knows of the job. Sample n is record n modulo the capacity: the eight ``FIELDS``,
    then for each GPU its utilisation (8 bits), temperature (8), power in W (16), memory in MiB (32) and flags (8: 1 it
    is known whether it is throttled, 2 it is, 4 a new ECC error, 8 a new Xid error). All bits set = unknown; a record
    whose time is 0 was never written.
    """

    def __init__(self, path: str, about: "Dict[str, Any]", gpus: int) -> None:
        self.format = struct.Struct("<8I" + _GPU * gpus)
        self.capacity = min(DAY, (RING_BYTES - HEADER_BYTES) // self.format.size)
        self.path, self._number = path, 0
        head = json.dumps({**about, "version": 1, "record": self.format.size, "capacity": self.capacity})
        self._head = head.encode().ljust(HEADER_BYTES - 1) + b"\n"

    def append(self, sample: "Dict[str, Any]") -> None:
        """Write a sample; raise OSError where the disk is full or the home is away."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(self.path, flags, 0o600)
        try:
            if not self._number or os.fstat(file).st_size < HEADER_BYTES:  # of an earlier start of the job
                os.ftruncate(file, 0)
                os.pwrite(file, self._head, 0)
            place = HEADER_BYTES + self._number % self.capacity * self.format.size
            os.pwrite(file, self.format.pack(*packed(sample)), place)
        finally:
            os.close(file)
        self._number += 1


def packed(sample: "Dict[str, Any]") -> "List[int]":
    """Return the numbers of a record."""
    found = [number(sample.get(name), UNKNOWN_32) for name in FIELDS]
    for gpu in sample["gpus"]:
        flags = 0 if gpu["throttled"] is None else _THROTTLE_KNOWN | (_THROTTLED if gpu["throttled"] else 0)
        flags |= (_ECC if gpu["new_ecc"] else 0) | (_XID if gpu["xids"] else 0)
        found += [
            number(gpu["utilisation"], UNKNOWN_8),
            number(gpu["temperature"], UNKNOWN_8),
            number(gpu["power"], UNKNOWN_16),
            number(gpu["memory"], UNKNOWN_32),
            flags,
        ]
    return found


def number(value: "Optional[float]", unknown: int) -> int:
    """Return a number that fits into a record's field."""
    return unknown if value is None else max(0, min(int(value), unknown - 1))


class Reporter:
    """Samples the job, keeps the samples, and sends the minutes.

    Args:
        part: the ``activity`` of the data document. usage: ``carme-usage``'s ``Usage``. devices: GPUs of the job.
        minutes: carme-minutes, as a module.
        host: node, limits and names that go along with the minutes.
        folder: of the samples. unsent: folder and name of the file with what is not accepted at the end.
        clock, wall: seconds of a clock that never goes back, and UTC epoch seconds.
    """

    def __init__(
        self,
        part: "Dict[str, Any]",
        usage: "Any",
        devices: "Sequence[Any]",
        minutes: "Any",
        host: "Dict[str, Any]",
        folder: str = ".",
        unsent: "Optional[Tuple[str, str]]" = None,
        clock: "Callable[[], float]" = time.monotonic,
        wall: "Callable[[], float]" = time.time,
        pids: "Optional[Callable[[], Sequence[int]]]" = None,
    ) -> None:
        self.part, self.usage, self.devices, self.folder = part, usage, devices, folder
        self._unsent = unsent or (folder, UNSENT)
        self._clock, self._wall, self._minutes, self._pids = clock, wall, minutes, pids
        self.interval = float(part.get("interval", INTERVAL))
        gpus = [{"uuid": each.uuid, "name": each.name, "memory": (each.memory() or (0, 0))[1]} for each in devices]
        self._about = {**host, "session": part["session"], "virtual": bool(part.get("virtual")), "gpus": gpus}
        began = {"began": int(wall()), "interval": self.interval}
        self._ring = Ring(folder + "/" + RING, {**self._about, **began}, len(devices))
        self._ecc = [None] * len(devices)  # type: List[Optional[int]]
        self._minute = None  # type: Any
        self.waiting = []  # type: List[Dict[str, Any]]
        self._failures = self._rest = 0
        # Each reporter has its own moment of the minute, so that a thousand of them come one by one.
        self._offset = random.random() * (MINUTE - 2 * self.interval)
        self._send_at = 0.0
        self._began, self._leftovers_sent = clock(), False
        self._problems = {}  # type: Dict[str, str]

    def sample(self) -> "Dict[str, Any]":
        """Return what the job uses now, as one sample."""
        pids = self._pids() if self._pids else None
        gpus = []
        for place, device in enumerate(self.devices):
            gpu = device.sample(pids)
            before, self._ecc[place] = self._ecc[place], gpu["ecc"]
            gpu["new_ecc"] = None if gpu["ecc"] is None or before is None else max(0, gpu["ecc"] - before)
            gpus.append(gpu)
        return {**self.usage.sample(self._clock()), **self._work(), "at": int(self._wall()), "gpus": gpus}

    def _work(self) -> "Dict[str, int]":
        """Return what is at work, as the session's server says; {} where it has not said it lately."""
        try:
            with open(self.folder + "/" + WORK, encoding="utf-8") as file:
                said = json.loads(file.read(1000))
            fresh = abs(self._wall() - said["at"]) <= WORK_SECONDS
            return {name: int(said[name]) for name in self._minutes.WORK} if fresh else {}
        except (OSError, ValueError, LookupError, TypeError):
            return {}

    def step(self) -> None:
        """Take one sample and keep it; send what is due."""
        sample = self.sample()
        at = sample["at"] // MINUTE * MINUTE
        if self._minute is not None and self._minute.at != at:
            self._close_minute()
        if self._minute is None:
            self._minute = self._minutes.Summary(at, self.interval)
            self._send_at = self._clock() + self._offset
        self._minute.add(sample)
        try:
            self._ring.append(sample)
            replace(self.folder, NOW, {**self._about, **sample, "gpus": self._named(sample)})
            self._say("folder")
        except OSError as error:
            self._say("folder", f"usage is not kept in the session folder: {error.strerror}")
        if self.waiting and self._clock() >= self._send_at:
            self._send_at = self._clock() + MINUTE
            self._send_waiting(SEND_SECONDS)
        if not self._leftovers_sent and self._clock() - self._began > LEFTOVERS_AFTER:
            self._leftovers_sent = True
            self._send_leftovers()

    def finish(self) -> None:
        """Send the last minute; keep in a file what is not accepted."""
        self._close_minute()
        self._rest = 0
        self._send_waiting(LAST_SECONDS)
        folder, name = self._unsent
        for number, first in enumerate(range(0, len(self.waiting), MOST_KEPT), 1):
            part = self.waiting[first : first + MOST_KEPT]
            file = name if number == 1 else name.replace(".json", f"~{number}.json")
            try:
                replace(folder, file, {"address": self._address(), "body": self._body(part)})
            except OSError as error:
                self._say("folder", f"{len(part)} minutes of usage are lost: {error.strerror}")

    def _close_minute(self) -> None:
        if self._minute is not None:
            self.waiting.append(self._minute.values())
            del self.waiting[:-MOST_WAITING]
            self._minute = None

    def _send_waiting(self, limit: float) -> None:
        """Send the oldest minutes. After failures the next tries come later, and not all reporters' at once."""
        if self._rest > 0:
            self._rest -= 1
            return
        while self.waiting:
            part = self.waiting[:MOST_MINUTES]
            try:
                self._minutes.send(self._address(), self._body(part), limit)
                self._say("service")
            except self._minutes.Refused as error:
                self._say("service", f"the service refused {len(part)} minutes of usage: {error}")
            except (OSError, ValueError) as error:
                self._rest = RESTS[min(self._failures, len(RESTS) - 1)]
                self._failures += 1
                self._say("service", f"usage cannot be sent now, and is sent later: {error}")
                return
            del self.waiting[: len(part)]
            self._failures = 0

    def _send_leftovers(self) -> None:
        """Send what earlier sessions of the user could not send."""
        for path in sorted(glob.glob(glob.escape(self.folder) + "/../*/" + UNSENT.replace(".", "*.")))[:20]:
            try:
                file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
                with os.fdopen(file, "rb") as opened:
                    kept = json.loads(opened.read(LARGEST_LEFTOVER).decode())
                minutes, body = kept["body"]["minutes"], kept["body"]
                for first in range(0, len(minutes), MOST_MINUTES):
                    part = {**body, "now": int(self._wall()), "minutes": minutes[first : first + MOST_MINUTES]}
                    # The address of this session: the hub may have another one now.
                    url = self.part["url"].replace(self.part["session"], body["session"])
                    self._minutes.send({**kept["address"], "url": url}, part, SEND_SECONDS)
                os.unlink(path)
            except self._minutes.Refused:
                os.unlink(path)
            except (OSError, ValueError, LookupError, TypeError):
                continue  # the next session tries it again

    def _address(self) -> "Dict[str, Any]":
        return {name: self.part.get(name, "") for name in ("url", "token", "ca_file")}

    def _body(self, minutes: "List[Dict[str, Any]]") -> "Dict[str, Any]":
        return {**self._about, "version": 1, "now": int(self._wall()), "minutes": minutes}

    def _named(self, sample: "Dict[str, Any]") -> "List[Dict[str, Any]]":
        """Return the GPUs of a sample with their names, and their processes with the pids of the container."""
        found = []
        for place, about in enumerate(self._about["gpus"]):
            gpu = sample["gpus"][place]
            processes = None
            if gpu["processes"] is not None:
                processes = [
                    {"pid": pid, "inside": inner_pid(pid), "memory": held} for pid, held in gpu["processes"].items()
                ]
            found.append({**about, **gpu, "memory_total": about["memory"], "processes": processes})
        return found

    def _say(self, what: str, problem: str = "") -> None:
        """Write a problem of the folder or the service to the job's log once; "" = there is none any more."""
        if problem and problem != self._problems.get(what):
            sys.stdout.write(f"[carme] {problem}\n")
            sys.stdout.flush()
        self._problems[what] = problem


def inner_pid(pid: int) -> int:
    """Return the pid of a process in its own pid namespace, proc(5); its own pid where it is not known."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("NSpid:"):
                    return int(line.split()[-1])
    except (OSError, ValueError):
        pass
    return pid


def is_alone(session: str, node: str) -> "Optional[socket.socket]":
    """Return what makes this program the one of its session on this node until it ends; None while there is another."""
    mark = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        mark.bind(f"\0carme-report-{session}-{node}")  # virtual nodes share the network namespace
        return mark
    except OSError:
        mark.close()
        return None


def replace(folder: str, name: str, value: "Any") -> None:
    """Write a JSON file (0600) in place of an older one, so that no reader sees half of it."""
    new = f"{folder}/{name}.new"
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(file, "w", encoding="utf-8") as opened:
        json.dump(value, opened, separators=(",", ":"))
    os.replace(new, folder + "/" + name)


def load(folder: str, name: str) -> "Any":
    """Load a program of the session folder as a module."""
    module = type(os)(name)
    with open(folder + "/" + name, encoding="utf-8") as file:
        exec(compile(file.read(), name, "exec"), module.__dict__)  # noqa: S102
    return module


def job_devices(folder: str, part: "Dict[str, Any]", environ: "Dict[str, str]") -> "List[Any]":
    """Return the GPUs of this job; [] where it has none, or no driver is here."""
    environ = {**environ, "CUDA_VISIBLE_DEVICES": environ.get(JOB_DEVICES) or environ.get("CUDA_VISIBLE_DEVICES", "")}
    if not environ["CUDA_VISIBLE_DEVICES"]:
        return []
    try:
        nvml = load(folder, "carme-nvml")
        return list(nvml.Driver(part.get("nvml") or nvml.LIBRARY).devices_of_job(environ))
    except (OSError, ValueError, SyntaxError):
        return []


def main() -> int:
    """Report until TERM."""
    folder, own, ends = sys.argv[1], sys.argv[-1], {signal.SIGTERM, signal.SIGINT}
    os.umask(0o077)
    signal.pthread_sigmask(signal.SIG_SETMASK, ends)
    for name in (signal.SIGUSR1, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    with open(folder + "/data.json", encoding="utf-8") as file:
        document = json.load(file)
    part = {**document["activity"], "session": document["session"]}
    environ, job = dict(os.environ), os.environ.get("SLURM_JOB_ID", "")
    memory, minutes = load(folder, "carme-memory"), load(folder, "carme-minutes")
    host = {name: part.get(name, 0) for name in ("memory_limit", "cpus")}
    host["node"] = environ.get("SLURMD_NODENAME", "")
    processes = memory.JobProcesses(job, node=host["node"])
    usage = load(folder, "carme-usage").Usage(memory, processes, job, environ.get("TMPDIR") or "/tmp")  # noqa: S108
    shared = processes.pids if any(name in environ for name in SHARED_GPUS) else None
    mark = None  # type: Any
    while not mark:
        mark = is_alone(part["session"], host["node"])
        if not mark and signal.sigtimedwait(ends, float(part.get("interval", INTERVAL))):
            return 0
    unsent = folder, UNSENT if own == folder else "usage-unsent-{}.json".format(host["node"])
    devices = job_devices(folder, part, environ)
    reporter = Reporter(part, usage, devices, minutes, host, own, unsent, pids=shared)
    due = time.monotonic()
    while True:
        reporter.step()
        due = max(due + reporter.interval, time.monotonic())
        if signal.sigtimedwait(ends, max(0.0, due - time.monotonic())):
            reporter.finish()
            return 0


if __name__ == "__main__":
    sys.exit(main())
