"""The program of a batch job: ``python -m carme_hub.training.conduct_batch FOLDER`` conducts the run of a folder.

The job has the session's container, and a step broker as a session has, but no server and no token. The run has the
nodes of the job and no companion. The exit status is 0 where the run finished, as Slurm's accounting then says.

With ``--requeue`` a run that was told that its time is nearly over (``here.on_time_limit``) and ended with success goes
on in another job (``conductor.requeue``): the exit status ``CONTINUES`` tells the hub.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from carme_hub.training.conduct import allow_many_files, conduct
from carme_hub.training.here import OUT_OF_TIME
from carme_hub.training.run import environment
from carme_hub.training.run.private_files import write
from carme_hub.training.run.run_folder import Run

#: As in ``carme_hub.domain.sessions.session``, for the hub.
CONTINUES = 85
CANCELLED = "The batch job was cancelled, or its time was over."


def main(words: list[str]) -> int:
    """Conduct the run, with its log as this process's output; return the exit status."""
    run = Run(Path(words[0]))
    log = os.open(run.folder / "conductor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    for number in (1, 2):
        os.dup2(log, number)
    os.close(log)
    allow_many_files()
    (run.folder / OUT_OF_TIME).unlink(missing_ok=True)
    kept = run.folder / environment.SUBMITTED_FILE
    write(run.folder / environment.FILE, kept.read_bytes())
    conduct(run, lambda: None, ended=CANCELLED)
    state = json.loads((run.folder / "state.json").read_text())["state"]
    if state == "waiting":
        return CONTINUES
    kept.unlink(missing_ok=True)  # it may have secrets
    return 0 if state == "finished" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
