"""The program of a batch job: ``python -m carme_hub.training.conduct_batch FOLDER`` conducts the run of a folder.

The job has the session's container, and a step broker as a session has, but no server and no token. The run has the
nodes of the job and no companion. The exit status is 0 where the run finished, as Slurm's accounting then says.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from carme_hub.training.conduct import allow_many_files, conduct
from carme_hub.training.run.run_folder import Run

CANCELLED = "The batch job was cancelled, or its time was over."


def main(words: list[str]) -> int:
    """Conduct the run, with its log as this process's output; return the exit status."""
    run = Run(Path(words[0]))
    log = os.open(run.folder / "conductor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    for number in (1, 2):
        os.dup2(log, number)
    os.close(log)
    allow_many_files()
    conduct(run, lambda: None, ended=CANCELLED)
    return 0 if run.state()["state"] == "finished" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
