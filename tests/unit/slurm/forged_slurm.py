"""Commands of Slurm forged as small scripts on a prefix of their own: they say what a test wants them to say."""

from __future__ import annotations

from pathlib import Path

from carme_hub.slurm.cli.parse import RECORD_FIELDS
from carme_hub.slurm.cli.queue_rows import QUEUE_FIELDS

#: Stands for the separator of the query in a text that a shim prints, and for the one that ends a row of squeue.
CUT, ROW = "\x02", "\x03"

QUEUE_HEADER = CUT.join(QUEUE_FIELDS.values()) + ROW + "\n"
RECORD_HEADER = CUT.join(RECORD_FIELDS) + CUT + "\n"

_SHIM = r"""#!/bin/sh
echo "$*" >> {folder}/$(basename "$0").calls
case "$*" in *@*) cut=$(printf '%s' "$*" | sed 's/^[^@]*\(@[a-z]*@\).*/\1/') ;; *) cut='|' ;; esac
{before}
row=$(printf '%s' "$cut" | tr @ '#')
LC_ALL=C sed "s/$(printf '\002')/$cut/g;s/$(printf '\003')/$row/g" {folder}/out
cat {folder}/err >&2
{after}
exit {code}
"""


class ForgedSlurm:
    """A prefix with a ``bin`` of shims."""

    def __init__(self, folder: Path) -> None:
        self.prefix = folder
        (folder / "bin").mkdir()

    def say(
        self, name: str, out: str | bytes = "", *, err: str = "", code: int = 0, before: str = "", after: str = ""
    ) -> None:
        """Make a command print that, with CUT replaced by the separator it was asked for."""
        folder = self.prefix / name
        folder.mkdir(exist_ok=True)
        (folder / "out").write_bytes(out.encode() if isinstance(out, str) else out)
        (folder / "err").write_text(err)
        shim = self.prefix / "bin" / name
        shim.unlink(missing_ok=True)
        shim.write_text(_SHIM.format(folder=folder, code=code, before=before, after=after))
        shim.chmod(0o755)

    def release(self, version: str, out: str | bytes = "") -> None:
        """Make scontrol of that release, which prints that to any other question."""
        tell = f'if [ "$*" = --version ]; then echo "slurm {version}"; exit 0; fi'
        self.say("scontrol", out, before=tell)

    def calls(self, name: str) -> list[str]:
        """Return the arguments of each call so far."""
        file = self.prefix / name / f"{name}.calls"
        return file.read_text().splitlines() if file.exists() else []


def queue_row(**changes: str) -> str:
    """Return one line of squeue: a job of alice's that runs, but for the changes."""
    row = {
        "JOBID": "7",
        "USER": "alice",
        "STATE": "RUNNING",
        "REASON": "None",
        "NODELIST": "node1",
        "PARTITION": "main",
        "ACCOUNT": "science",
        "PRIORITY": "4294901756",
        "SUBMIT_TIME": "1795229612",
        "START_TIME": "1795229614",
        "END_TIME": "1795233214",
        "TIME_LIMIT": "1:00:00",
        "TRES_ALLOC": "cpu=1,mem=512M,node=1,billing=1,gres/gpu=2,gres/gpu:a100=2",
        "TRES_PER_NODE": "gres:gpu:a100:2",
        "TRES_PER_JOB": "N/A",
        "TRES_PER_TASK": "N/A",
        "NODES": "1",
        "EXIT_CODE": "0",
        "RESTART_COUNT": "0",
        "RESERVATION": "",
        "ARRAY_JOB_ID": "7",
        "ARRAY_TASK_ID": "N/A",
        "NAME": "carme-0f9a",
        **changes,
    }
    return CUT.join(row[word] for word in QUEUE_FIELDS.values()) + ROW + "\n"


def record_row(**changes: str) -> str:
    """Return one line of sacct: that job, ended, but for the changes."""
    row = {
        "JobIDRaw": "7",
        "User": "alice",
        "State": "COMPLETED",
        "Submit": "1795229612",
        "Start": "1795229614",
        "End": "1795229714",
        "Account": "science",
        "NodeList": "node1",
        "AllocTRES": "billing=1,cpu=1,gres/gpu:a100=2,gres/gpu=2,mem=512M,node=1",
        "ExitCode": "0:0",
        "JobName": "carme-0f9a",
        **changes,
    }
    return CUT.join(row.values()) + CUT + "\n"
