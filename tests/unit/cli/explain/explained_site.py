"""One site whose database, Slurm and log have the story of a session; Slurm's commands are scripts."""

from __future__ import annotations

from pathlib import Path

from rig.command_line import CommandLine

from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import Entry, Kind, charge_key, hold_key, release_key
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.slurm.cli.history import FIELDS
from carme_hub.slurm.cli.queue_rows import QUEUE_FIELDS
from carme_hub.store.engine import CarmeStore
from carme_hub.store.idle import WARNED, IdleEvent, IdleStore
from carme_hub.store.ledger.writes import LedgerStore
from carme_hub.store.sessions import SessionStore

ID = "1b2c3d4e-0000-4000-8000-0000000000aa"
#: 2026-11-20 10:00:00 UTC.
T0 = 1_795_168_800.0
REQUEST = Request(profile="a100", image="default", gpus=Gpus("a100", 2), cpus=4, memory_mib=8192, account="physics")

_SHIM = r"""#!/bin/sh
case "$*" in *@*) cut=$(printf '%s' "$*" | sed 's/^[^@]*\(@[a-z]*@\).*/\1/') ;; *) cut='|' ;; esac
row=$(printf '%s' "$cut" | tr @ '#')
sed "s/CUT/$cut/g;s/ROW/$row/g" {folder}/{name}.out
cat {folder}/{name}.err >&2
exit {code}
"""


class ForgedCommands:
    """Slurm's commands as scripts in the folder ``bin`` of a prefix."""

    def __init__(self, prefix: Path) -> None:
        self.folder = prefix / "bin"
        self.folder.mkdir(exist_ok=True)

    def say(self, name: str, out: str = "", *, err: str = "", code: int = 0) -> None:
        """Make a command print that; CUT and ROW stand for the separators that it is asked for."""
        (self.folder / f"{name}.out").write_text(out)
        (self.folder / f"{name}.err").write_text(err)
        shim = self.folder / name
        shim.write_text(_SHIM.format(folder=self.folder, name=name, code=code))
        shim.chmod(0o755)

    def silent(self) -> None:
        """Let Slurm give no answer."""
        for name in ("squeue", "sacct"):
            self.say(name, err=f"{name}: error: Unable to contact slurm controller (connect failure)\n", code=1)

    def queue(self, **changes: str) -> None:
        """Let the queue have one job with these values, or none."""
        self.say("squeue", "CUT".join(QUEUE_FIELDS.values()) + "ROW\n" + (queue_row(**changes) if changes else ""))

    def accounting(self, *rows: str) -> None:
        """Let accounting have these rows."""
        self.say("sacct", "CUT".join(FIELDS) + "CUT\n" + "".join(rows))


def queue_row(**changes: str) -> str:
    """Return a row of squeue: a job of alice's that runs, but for the changes."""
    row = dict.fromkeys(QUEUE_FIELDS.values(), "N/A")
    row |= {"JOBID": "4711", "NAME": f"carme-{ID}", "USER": "alice", "STATE": "RUNNING", "REASON": "None"}
    row |= {"SUBMIT_TIME": f"{T0 + 1:.0f}", "START_TIME": f"{T0 + 61:.0f}", "NODELIST": "node1", "NODES": "1"}
    row |= {"PRIORITY": "1", "TIME_LIMIT": "1:00:00", "EXIT_CODE": "0", "RESTART_COUNT": "0", "ARRAY_JOB_ID": "4711"}
    row |= {"RESERVATION": "", **changes}
    return "CUT".join(row.values()) + "ROW\n"


def record(id: str = "4711", **changes: str) -> str:
    """Return a row of sacct: that job, which ended by its time limit, but for the changes."""
    row = dict.fromkeys(FIELDS, "")
    row |= {"JobIDRaw": id, "JobName": f"carme-{ID}", "User": "alice", "State": "TIMEOUT", "Submit": f"{T0 + 1:.0f}"}
    row |= {"Start": f"{T0 + 61:.0f}", "End": f"{T0 + 3661:.0f}", "Account": "physics", "Partition": "gpu"}
    row |= {"NodeList": "node1", "ExitCode": "0:0", "TimelimitRaw": "60", **changes}
    return "CUT".join(row.values()) + "CUT\n"


def session(id: str = ID, **changes: object) -> Session:
    """Return the row of a session that ended by its time limit, but for the changes."""
    row = Session(
        id=id,
        cluster="lab",
        user="alice",
        server_name="train",
        request=REQUEST,
        state=SessionState.ENDED,
        created=T0 + 0.5,
        nonce_hash="0123456789abcdef0123456789abcdef",
        port=40000,
        node="node1",
        job_id=4711,
        submitted=T0 + 1,
        started=T0 + 65,
        ended=T0 + 3661,
        end_reason="The time limit was reached, or a budget was used up. Choose a longer time next time.",
    )
    return row.replace(**changes)


class ExplainedSite:
    """A site with one session of alice's."""

    def __init__(self, line: CommandLine) -> None:
        self.line = line
        self.slurm = ForgedCommands(line.folder)
        self.slurm.queue()
        self.slurm.accounting(
            record(), record("4711.batch", User="", JobName="batch", State="CANCELLED", ExitCode="0:15")
        )
        self.log = line.folder / "hub.log"

    def store(self, *sessions: Session) -> None:
        """Write rows of sessions."""
        engine = CarmeStore(url=self.line.url).open()
        for each in sessions:
            SessionStore(engine).add(each)
        engine.dispose()

    def store_story(self) -> None:
        """Write the session, its entries in the ledger, and a warning."""
        self.store(session())
        engine = CarmeStore(url=self.line.url).open()
        about = {"cluster": "lab", "account": "physics", "user": "alice", "session": ID}
        entries = (
            Entry(hold_key(ID), Kind.HOLD, amount=-7_200_000, at=T0 + 0.4, start=T0, end=T0 + 3600, **about),
            Entry(release_key(ID), Kind.RELEASE, amount=7_200_000, at=T0 + 3700, **about),
            Entry(
                *(charge_key("lab", 4711, T0 + 1), Kind.CHARGE),
                **{"amount": -7_200_000, "at": T0 + 3700, "job_id": 4711, "submitted": T0 + 1, **about},
                **{"start": T0 + 61, "end": T0 + 3661, "reason": "Job 4711"},
            ),
        )
        with LedgerStore(engine).transaction("lab") as writes:
            writes.append(entries)
        IdleStore(engine, "lab").add(IdleEvent(ID, T0 + 3000, WARNED, 600))
        engine.dispose()
