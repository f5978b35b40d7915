"""A large cluster as Slurm's commands report it: forged from a fixed seed, in the format of the real answers.

Rows are as squeue 22.05 prints them for our ``--Format``, in its default order: by partition, state and
priority. One row in four of the waiting is an array; its running tasks have their own rows.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.slurm.cli.queue_rows import QUEUE_FIELDS, Separators

TYPES = ("a100", "h100", "l40s", "v100")
PARTITIONS = ("gpu", "cpu", "long", "gpu,long")
#: The separators of the queries are fixed and alternate, so that the answers can be written in advance.
SEPARATOR_WORDS = ("@benchmarkone@", "@benchmarktwo@")
#: One session in so many waits in the queue, and one in so many is just starting.
WAITS, STARTS = 25, 500

_SHIM = """#!/bin/sh
case "$*" in
*{0}*) exec cat {2}/queue.1 ;;
*{1}*) exec cat {2}/queue.2 ;;
*node*) exec cat {2}/nodes ;;
*user*) exec cat {2}/users ;;
esac
"""


@dataclass(frozen=True)
class Size:
    """The size of the cluster."""

    sessions: int
    users: int
    nodes: int
    jobs: int


def account_of(user: int) -> str:
    return f"account{user % 200}"


def sessions(size: Size) -> list[Session]:
    """Return the open sessions, all of which have a job."""
    rng, now = random.Random(6), time.time()
    found = []
    for n in range(size.sessions):
        user, waits, starts = n % size.users, n % WAITS == 1, n % STARTS == 2
        request = Request("gpu", "base", Gpus(TYPES[n % 4], 1), 8, 65536, 480, account_of(user), "gpu")
        begun = now - rng.randint(100, 20_000)
        found.append(
            Session(
                id=str(uuid.UUID(int=rng.getrandbits(128), version=4)),
                cluster="lab",
                user=f"user{user}",
                server_name=f"s{n // size.users}" if n >= size.users else "",
                request=request,
                state=SessionState.SUBMITTED if waits or starts else SessionState.RUNNING,
                created=begun,
                port=0 if waits or starts else 50_000,
                node="" if waits else f"node{n % size.nodes:04}",
                job_id=1_000_000 + n,
                submitted=float(int(begun)),
                started=0.0 if waits or starts else begun + 3,
                saved=0.0 if waits or starts else begun + 30,
            )
        )
    return found


def queue(size: Size, ours: list[Session], seed: int) -> Iterator[dict[str, str]]:
    """Yield the rows of squeue; with another seed, one in fifty of those that wait has another priority."""
    rng, change = random.Random(7), random.Random(seed)
    now = int(max(session.created for session in ours))
    rows = []
    for session in ours:
        waits = session.state is SessionState.SUBMITTED and not session.node
        rows.append(_row(rng, size, session.job_id, session.job_name, session.user, "gpu", waits, int(session.created)))
    for n in range(size.jobs - len(ours)):
        # Some submit whole arrays: running tasks have their own ids, waiting tasks are one row.
        who, waits = n // 8 if n % 4 else n, rng.random() < 0.6
        place = PARTITIONS[who % 4]
        rows.append(_row(rng, size, 2_000_000 + n, f"train-{who}", f"user{who % 5000}", place, waits, now - 9 * n))
    for row in rows:
        if row["STATE"] == "PENDING" and change.random() < 0.02:
            row["PRIORITY"] = str(int(row["PRIORITY"]) + seed)
    yield from sorted(rows, key=lambda row: (row["PARTITION"], row["STATE"], -int(row["PRIORITY"])))


def _row(
    rng: random.Random, size: Size, id: int, name: str, user: str, partition: str, waits: bool, submitted: int
) -> dict[str, str]:
    count, type = rng.choice((1, 1, 2, 4, 8)), rng.choice(TYPES)
    tres = f"cpu={8 * count},mem={64 * count}G,node=1,billing={8 * count},gres/gpu={count},gres/gpu:{type}={count}"
    start = submitted + rng.randint(1, 5000)
    has_gpus = partition != "cpu"
    return {
        **dict.fromkeys(QUEUE_FIELDS.values(), "N/A"),
        "JOBID": str(id),
        "NAME": name,
        "USER": user,
        "STATE": "PENDING" if waits else "RUNNING",
        "SUBMIT_TIME": str(submitted),
        "REASON": rng.choice(("Priority", "Priority", "Resources", "QOSMaxGRESPerUser")) if waits else "None",
        "NODELIST": "" if waits else f"node{rng.randrange(size.nodes):04}",
        "PARTITION": partition,
        "ACCOUNT": account_of(id),
        "PRIORITY": str(rng.randint(1000, 90_000)),
        "START_TIME": "N/A" if waits else str(start),
        "END_TIME": "N/A" if waits else str(start + 28_800),
        "TIME_LIMIT": "8:00:00",
        "TRES_ALLOC": "N/A" if waits else tres if has_gpus else "cpu=8,mem=64G,node=1,billing=8",
        "TRES_PER_NODE": f"gres:gpu:{type}:{count}" if has_gpus else "N/A",
        "NODES": "1",
        "EXIT_CODE": "0",
        "RESTART_COUNT": "0",
        "RESERVATION": "",
        "ARRAY_JOB_ID": str(id),
    }


def answer(rows: Iterator[dict[str, str]], cuts: Separators) -> bytes:
    """Return squeue's output for these rows and separators."""
    words = QUEUE_FIELDS.values()
    lines = [cuts.field.join(words), *(cuts.field.join(row[word] for word in words) for row in rows)]
    return "".join(f"{line}{cuts.row}\n" for line in lines).encode()


def nodes(size: Size) -> str:
    """Return the output of ``scontrol show node --details --oneliner``."""
    rng = random.Random(2)
    lines = []
    for n in range(size.nodes):
        used = rng.choice((0, 2, 4, 6, 7, 8, 8, 8))
        state = rng.choices(("MIXED", "IDLE", "ALLOCATED", "DOWN*+DRAIN"), (60, 10, 25, 5))[0]
        marks = f"0-{used - 1}" if used else "N/A"
        lines.append(
            f"NodeName=node{n:04} Arch=x86_64 CoresPerSocket=64 CPUAlloc={16 * used} CPUTot=128 CPULoad=12.5 "
            f"Gres=gpu:{TYPES[n % 4]}:8(S:0-1) GresUsed=gpu:{TYPES[n % 4]}:{used}(IDX:{marks}) NodeAddr=node{n:04} "
            f"RealMemory=1031000 AllocMem={120000 * used} State={state} Partitions=gpu,long,cpu\n"
        )
    return "".join(lines)


def users(size: Size) -> str:
    """Return sacctmgr's output for the associations."""
    rows = (f"user{n}|{account_of(n)}||normal|{account_of(n)}|\n" for n in range(size.users))
    return "User|Account|Partition|QOS|Def Acct|Coord Accounts\n" + "".join(rows)


class SlurmFromARecord:
    """A prefix with forged commands of Slurm, which print the content of files."""

    def __init__(self, folder: Path) -> None:
        self.prefix = folder

    @property
    def answers(self) -> list[bytes]:
        """The two answers of squeue."""
        return [(self.prefix / f"queue.{at}").read_bytes() for at in (1, 2)]

    def record(self, size: Size, ours: list[Session]) -> None:
        """Write the commands and their answers."""
        for at, word in enumerate(SEPARATOR_WORDS, 1):
            (self.prefix / f"queue.{at}").write_bytes(answer(queue(size, ours, at), Separators.of(word)))
        (self.prefix / "nodes").write_text(nodes(size))
        (self.prefix / "users").write_text(users(size))
        (self.prefix / "bin").mkdir(exist_ok=True)
        for name in ("squeue", "scontrol", "sacctmgr", "sacct"):
            (self.prefix / "bin" / name).write_text(_SHIM.format(*SEPARATOR_WORDS, self.prefix))
            (self.prefix / "bin" / name).chmod(0o755)
