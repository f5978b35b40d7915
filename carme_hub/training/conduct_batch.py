"""The program of a batch job: ``python -m carme_hub.training.conduct_batch FOLDER`` conducts the run of a folder.

The job has the session's container, and a step broker as a session has, but no server and no token. The run has the
nodes of the job and no companion. The exit status is 0 where the run finished, as Slurm's accounting then says.

A run that was requested from another machine has no folder yet: its files came with the job, and are written first.

With ``--requeue`` a run that was told that its time is nearly over (``here.on_time_limit``) and ended with success goes
on in another job (``conductor.requeue``): the exit status ``CONTINUES`` tells the hub.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from carme_hub.training.conduct import allow_many_files, conduct
from carme_hub.training.here import OUT_OF_TIME
from carme_hub.training.records import record, source
from carme_hub.training.run import environment
from carme_hub.training.run.private_files import write, write_json
from carme_hub.training.run.run_folder import Run, State

#: As in ``carme_hub.domain.sessions.session``, for the hub.
CONTINUES = 85
CANCELLED = "The batch job was cancelled, or its time was over."
#: The files of a run that was requested from another machine, in the session folder
#: (``carme_hub.spawners.companions.script``).
RUN_FILES = "run-files.json"


def main(words: list[str]) -> int:
    """Conduct the run, with its log as this process's output; return the exit status."""
    run = Run(Path(words[0]))
    run = place(run, Path(os.environ.get("CARME_SESSION_FOLDER", "")) / RUN_FILES)
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


def place(run: Run, files: Path, environ: Mapping[str, str] = os.environ) -> Run:
    """Write the files of a run that was requested from another machine, and return it.

    What names that machine's places is replaced. Where this home has another run of its name, it gets another one.

    Raises:
        SystemExit: it would need another name, by which the job that continues it could not find it.
    """
    if not files.is_file():
        return run
    texts = json.loads(files.read_text())
    request, state = json.loads(texts.pop("asked.json")), json.loads(texts.pop("state.json"))
    wanted, run = run, _own_folder(run, request["key"])
    if run != wanted and request["asked"].get("requeue"):
        raise SystemExit(f"There is another run {wanted.id} in this home. Choose another name.")
    run.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (run.folder / "asked.json").exists():  # else this home is shared with that machine, or a job continues it
        for name, text in texts.items():
            write(run.folder / name, text.encode())
        write_json(run.folder / "state.json", state | {"id": run.id})
    if not run.batch_job():
        job = {"id": environ.get("CARME_SESSION", ""), "state": "running", "said": "", "created": time.time()}
        run.set_batch_job(job)
    run.logdir.mkdir(mode=0o700, exist_ok=True)
    write_json(run.folder / "asked.json", _request_here(run, request))  # the last one: with it the folder is whole
    files.unlink()  # it may have secrets
    return run


def _own_folder(run: Run, key: str) -> Run:
    """Return the run of this key, or one of a name that is free."""
    for number in itertools.count(2):
        if not (run.folder / "asked.json").exists() or run.request()["key"] == key:
            return run
        run = Run(run.folder.with_name(f"{run.id.rpartition('-')[0] if number > 2 else run.id}-{number}"))
    raise AssertionError  # there is always another number


def _request_here(run: Run, request: State) -> State:
    """Return a request from another machine with places of this one."""
    found = {**request, "python": sys.executable, "path": []}
    script = str(request.get("script", ""))
    if request["kind"] == "script":
        same = False
        with contextlib.suppress(OSError):  # it is somebody else's
            same = source.digest(Path(script).read_bytes()) == request["script_digest"]
        found["script"] = script if same else str(run.folder / record.SCRIPT)
    if not os.access(request["cwd"], os.X_OK):
        found["cwd"] = str(Path.home())
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
