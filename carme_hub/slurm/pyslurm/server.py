"""The program that queries Slurm through pyslurm in a process of its own. It imports nothing of ours.

pyslurm 25.11 holds the interpreter's lock while libslurm waits, and libslurm ends the whole process if it finds no
configuration. Neither may happen to the hub, so ``process.py`` sends its queries to this program: each is a line of
JSON, ``{"ask": "jobs", "with": {}}``, and the answer is a line with a length followed by as many bytes of JSON,
``{"answer": …}``, ``{"error": "message"}``, or ``{"beyond": "reason"}`` if pyslurm does not show the requested data.

Values that a user can set on a job must not make the whole queue unreadable: a row must identify the job, and any other
value that cannot be read is null. ``python server.py --version`` prints pyslurm's release without a query to Slurm.

pyslurm differs from libslurm in some places, which are worked around here (all seen in 25.11.2):

* A collection of jobs from accounting has only the newest incarnation of each job; older ones are queried one by one.
* It prints to standard output. Therefore the answers go to another descriptor.
* Names that are not UTF-8 raise an exception, which contains the bytes.
"""

from __future__ import annotations

import ctypes
import json
import os
import pwd
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_PR_SET_PDEATHSIG = 1
_DAY = 86400
#: The largest number of incarnations of one job.
_MAX_INCARNATIONS = 1000


class NotAvailable(Exception):
    """pyslurm does not show the requested data."""


def value(thing: Any, name: str) -> Any:
    """Return an attribute that must be readable; bytes that are not UTF-8 are replaced."""
    try:
        return getattr(thing, name)
    except UnicodeDecodeError as error:
        return error.object.decode("utf-8", "replace")


def required(thing: Any, name: str) -> Any:
    """Return an attribute that a row needs."""
    found = value(thing, name)
    if found is None:
        raise ValueError(f"{thing!r} has no {name}")
    return found


def optional(thing: Any, name: str) -> Any:
    """Return an attribute, None if it cannot be read."""
    try:
        return value(thing, name)
    except Exception:  # noqa: BLE001 - another project's code on values that users set
        return None


def tres(thing: Any, name: str) -> str:
    """Return the GPUs and shards of TRES in Slurm's notation: ``gres/gpu=2,gres/gpu:a100=2``."""
    gres = optional(optional(thing, name), "gres") or {}
    return _list("=", {f"gres/{kind}": optional(each, "count") for kind, each in gres.items()})


def jobs(pyslurm: Any, name: str = "", user: str = "") -> list[list[Any]]:
    """Return all jobs, or those of that name and user."""
    names: dict[int, str] = {}
    found = []
    for job in pyslurm.Jobs.load().values():
        whose = _user(required(job, "user_id"), names)
        called = value(job, "name") or ""
        if name and (called, whose) != (name, user):
            continue
        found.append(_job(job, called, whose))
    return found


def _job(job: Any, name: str, user: str) -> list[Any]:
    return [
        required(job, "id"),
        name,
        user,
        required(job, "state"),
        optional(job, "state_reason"),
        optional(job, "allocated_nodes"),
        optional(job, "partition"),
        optional(job, "account"),
        optional(job, "priority"),
        required(job, "submit_time"),
        optional(job, "start_time"),
        optional(job, "end_time"),
        optional(job, "time_limit"),
        tres(job, "allocated_tres") or tres(job, "requested_tres"),
        _list(":", optional(job, "gres_per_node") or {}),
        optional(job, "num_nodes"),
        [optional(job, "exit_code"), optional(job, "exit_code_signal")],
        optional(job, "requeue_count"),
        optional(job, "reservation"),
    ]


def nodes(pyslurm: Any) -> list[list[Any]]:
    """Return all nodes. Only the commands show which GPUs have shards in use (GresUsed)."""
    tracked = frozenset(pyslurm.slurmctld.Config.load().accounting_storage_tres)
    return [_node(node, tracked) for node in pyslurm.Nodes.load().values()]


def _node(node: Any, tracked: frozenset[str]) -> list[Any]:
    name = value(node, "name")
    there, used = value(node, "configured_gres"), value(node, "allocated_tres")
    types = {f"gres/{kind}" for kind in there if kind == "gpu" or kind.startswith("gpu:")}
    if types and ("gres/gpu" not in tracked or (len(types) > 1 and not types <= tracked)):
        raise NotAvailable(f"{', '.join(sorted(types))} of {name} are not all in AccountingStorageTRES")
    if any(kind.startswith("gres/shard") for kind in used):
        raise NotAvailable(f"shards of {name} are in use")
    return [
        name,
        value(node, "state"),
        value(node, "partitions"),
        value(node, "effective_cpus") or value(node, "total_cpus"),
        value(node, "allocated_cpus"),
        value(node, "real_memory") or 0,
        value(node, "allocated_memory"),
        _list(":", there),
        _list("=", used),
        value(node, "address"),
        optional(node, "reason"),
    ]


def reservations(pyslurm: Any) -> list[list[Any]]:
    """Return all reservations, without the flags that pyslurm has no name for."""
    return [_reservation(each) for each in pyslurm.Reservations.load().values()]


def _reservation(each: Any) -> list[Any]:
    name = value(each, "name")
    try:
        flags = each.flags
    except ValueError as error:  # how enum treats a bit without a name depends on Python's release
        raise NotAvailable(f"flags of the reservation {name}: {error}") from error
    return [
        name,
        value(each, "start_time"),
        value(each, "end_time"),
        value(each, "nodes"),
        _list("=", value(each, "tres")),
        value(each, "users"),
        value(each, "accounts"),
        [flag.name for flag in type(flags) if flag in flags] + [str(value(each, "reoccurrence").value)],
        value(each, "is_active"),
        value(each, "licenses"),
    ]


def records(pyslurm: Any, name: str, user: str, since: float) -> list[list[Any]]:
    """Return every incarnation of the jobs of that name and user in accounting, by submit time.

    slurmdbd returns only the newest incarnation of each job by default, and pyslurm cannot change that. A query with a
    job id accepts an upper limit of the submit time, so the previous incarnation is queried until there is none.
    """
    connection = pyslurm.db.Connection.open()
    begin = max(1, int(since) - _DAY)  # 0 would mean today
    names: dict[int, str] = {}

    def ask(**words: Any) -> list[Any]:
        wanted = pyslurm.db.JobFilter(names=[name], start_time=begin, **words)
        return list(pyslurm.db.Jobs.load(wanted, connection).values())

    def ours(job: Any) -> bool:
        return value(job, "name") == name and _user(required(job, "user_id"), names) == user

    found = []
    for job in ask():
        for one in _incarnations(job, ask):
            if ours(one):
                found.append(_record(one, user))
    return sorted(found, key=lambda row: (row[4], row[0]))


def _incarnations(newest: Any, ask: Callable[..., list[Any]]) -> Iterator[Any]:
    yield newest
    number, last = required(newest, "id"), required(newest, "submit_time")
    for _ in range(_MAX_INCARNATIONS):
        # libslurm treats "before this second" as "until now", by a clock that is a few milliseconds behind.
        time.sleep(max(0.0, last + 1.05 - time.time()))
        older = [job for job in ask(ids=[number], end_time=last) if value(job, "id") == number]
        if not older:
            return
        last, before = value(older[0], "submit_time"), last
        if last >= before:
            raise RuntimeError(f"accounting shows the job {number} of {last} instead of one before {before}")
        if value(older[0], "eligible_time"):  # like sacct, which omits jobs that were never eligible
            yield older[0]


def _record(job: Any, user: str) -> list[Any]:
    state = required(job, "state")
    if state == "CANCELLED" and (who := optional(job, "cancelled_by")):
        state = f"CANCELLED by {_number(who)}"
    return [
        value(job, "id"),
        value(job, "name"),
        user,
        state,
        required(job, "submit_time"),
        value(job, "start_time"),
        value(job, "end_time"),
        optional(job, "nodelist"),
        optional(job, "account"),
        tres(job, "allocated_tres"),
        [optional(job, "exit_code"), optional(job, "exit_code_signal")],
    ]


def _list(between: str, words: Mapping[str, Any]) -> str:
    return ",".join(f"{name}{between}{count}" for name, count in words.items())


def _user(number: int, names: dict[int, str]) -> str:
    """Return a user's name, or the uid, as Slurm's commands do; looked up once for each answer."""
    if number not in names:
        try:
            names[number] = pwd.getpwuid(number).pw_name
        except KeyError:
            names[number] = str(number)
    return names[number]


def _number(name: str) -> str:
    """Return a user's uid, which sacct shows for a cancelled job."""
    try:
        return str(pwd.getpwnam(name).pw_uid)
    except KeyError:
        return name


QUERIES: Mapping[str, Callable[..., Any]] = {
    "jobs": jobs,
    "nodes": nodes,
    "reservations": reservations,
    "records": records,
}


def answer(pyslurm: Any, line: bytes) -> dict[str, Any]:
    """Answer one query."""
    try:
        question = json.loads(line)
        return {"answer": QUERIES[question["ask"]](pyslurm, **question["with"])}
    except NotAvailable as error:
        return {"beyond": str(error)}
    except Exception as error:  # noqa: BLE001 - the library raises various exceptions, and each means: no answer
        return {"error": " ".join(f"{type(error).__name__}: {error}".split())}


def serve() -> None:
    """Answer queries until the end of standard input."""
    ctypes.CDLL(None).prctl(
        _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0
    )  # libslurm may wait without noticing the end of the parent
    out = os.dup(1)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    import pyslurm

    with os.fdopen(out, "wb") as answers:
        for line in sys.stdin.buffer:
            text = json.dumps(answer(pyslurm, line)).encode()
            answers.write(b"%d\n%s" % (len(text), text))
            answers.flush()


def main() -> None:
    """Run the command line."""
    if sys.argv[1:] != ["--version"]:
        serve()
        return
    os.environ["PYSLURM_DISABLE_AUTO_INIT"] = "1"  # otherwise libslurm reads its configuration, and exits without one
    import pyslurm

    sys.stdout.write(f"{pyslurm.__version__}\n")


if __name__ == "__main__":
    main()
