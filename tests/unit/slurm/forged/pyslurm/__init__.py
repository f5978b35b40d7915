"""A forged pyslurm 25.11.2: it says what ``answers.json`` beside it holds, or fails as it is told.

What it says in the tests that hold both clients against each other was recorded from the real library on a real Slurm
25.11 (``tests/rig/record_pyslurm.py``), each attribute that the product reads. ``{"bytes": hex}`` is a name that is not
UTF-8, ``{"gres": {…}}`` TRES, ``{"flags": […]}`` flags of a reservation, null in their place flags that the library has
no name for, ``{"value": …}`` an enumeration's. ``users`` are the users of the machine that it was recorded on.
"""

import json
import os
import pwd
import signal
import time
from enum import Flag, auto
from pathlib import Path
from types import SimpleNamespace

__version__ = "25.11.2"

_ANSWERS = Path(__file__).with_name("answers.json")


class RPCError(Exception):
    """What the library raises where Slurm gives no answer."""


class ReservationFlags(Flag):
    """The flags of reservations that the library has names for."""

    MAINTENANCE = auto()
    MAGNETIC = auto()
    FLEX = auto()
    IGNORE_RUNNING_JOBS = auto()
    ANY_NODES = auto()
    STATIC_NODES = auto()
    PARTITION_NODES_ONLY = auto()
    USER_DELETION = auto()
    PURGE = auto()
    SPECIFIC_NODES = auto()
    NO_JOB_HOLD_AFTER_END = auto()
    OVERLAP = auto()
    ALL_NODES = auto()
    SKIP = auto()
    SCHED_FAILED = auto()


class Thing:
    """One job, node, record or reservation."""

    def __init__(self, words):
        self._words = words

    def __getattr__(self, name):
        word = self._words[name]
        if not isinstance(word, dict):
            return word
        if "bytes" in word:
            return bytes.fromhex(word["bytes"]).decode()
        if "gres" in word:
            return SimpleNamespace(gres={kind: SimpleNamespace(count=n) for kind, n in word["gres"].items()})
        if "flags" in word:
            if word["flags"] is None:
                raise ValueError("4294967296 is not a valid ReservationFlags")
            found = ReservationFlags(0)
            for flag in word["flags"]:
                found |= ReservationFlags[flag]
            return found
        return SimpleNamespace(value=word["value"]) if "value" in word else word


def _answers(what):
    said = json.loads(_ANSWERS.read_text())
    fault = said.get("fault", {}).get(what)
    if fault == "silent":
        time.sleep(600)
    elif fault == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif fault == "fatal":
        os.write(2, b"slurm_load: fatal: Could not establish a configuration source\n")
        os._exit(1)
    elif fault:
        raise RPCError(fault)
    print(f"the library says something of {what}")
    return said.get(what, [])


class _Collection:
    def __init__(self, things):
        self._things = things

    def values(self):
        return iter(self._things)


def _loading(what):
    return type(what, (), {"load": staticmethod(lambda: _Collection([Thing(words) for words in _answers(what)]))})


class JobFilter:
    """What is asked of accounting."""

    def __init__(self, *, names, start_time, ids=(), end_time=0):
        self.names, self.start, self.ids, self.end = names, start_time, ids, end_time


class _Records:
    """As slurmdbd answers: of each job the newest incarnation that fits the question."""

    @staticmethod
    def load(wanted, connection):
        newest = {}
        for words in _answers("records"):
            if words["name"] not in wanted.names or (words["end_time"] or time.time()) < wanted.start:
                continue
            if wanted.ids and (words["id"] not in wanted.ids or words["submit_time"] >= wanted.end):
                continue
            if not wanted.ids and not words["eligible_time"]:
                continue
            if words["id"] not in newest or words["submit_time"] > newest[words["id"]]["submit_time"]:
                newest[words["id"]] = words
        return _Collection([Thing(words) for words in newest.values()])


Jobs, Nodes, Reservations = (_loading(what) for what in ("jobs", "nodes", "reservations"))
db = SimpleNamespace(
    JobFilter=JobFilter, Jobs=_Records, Connection=SimpleNamespace(open=lambda: SimpleNamespace(is_open=True))
)
slurmctld = SimpleNamespace(
    Config=SimpleNamespace(load=lambda: SimpleNamespace(accounting_storage_tres=_answers("tracked")))
)
if not os.environ.get("PYSLURM_DISABLE_AUTO_INIT"):
    _answers("start")
    if users := _answers("users"):
        pwd.getpwuid = lambda number: SimpleNamespace(pw_name=users[str(number)])
        pwd.getpwnam = lambda name: SimpleNamespace(pw_uid={users[number]: int(number) for number in users}[name])
