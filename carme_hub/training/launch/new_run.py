"""Creates the folder of a new run, and launches its conductor."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from carme_hub.training.records import record, source
from carme_hub.training.run import environment, results
from carme_hub.training.run.private_files import write, write_json
from carme_hub.training.run.run_folder import START_TIMEOUT, NoRun, Run, State, has_virtual_gpus, root
from carme_hub.training.run.run_options import InvalidOptions, RunOptions, from_json

from . import code_check

#: Seconds more for ranks of ``--stage`` to start: those of further nodes copy the data before they begin.
STAGE_SECONDS = 3600.0


def create(
    options: RunOptions,
    *,
    cell: str | None = None,
    script: str | None = None,
    module: str | None = None,
    command: str | None = None,
    args: Sequence[str] = (),
    call: tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]] | None = None,
    push: Mapping[str, Any] | None = None,
    limit: int = results.LIMIT,
    start_limit: float = 120.0,
    given: RunOptions | None = None,
    price: str = "",
    outside: bool = False,
) -> Run:
    """Create the folder of a run, which ``launch`` starts. It runs exactly one of what can be given.

    Args:
        options: of the run. cell: code. script: path of a Python program, module: name of one, as for ``python -m``,
            command: any program, by its path or found in PATH; each of the three with its ``args``.
        call: a function with its positional and named arguments; each rank's result is kept.
        push: variables that each rank gets before its code runs; for ``cell`` only.
        limit: the most bytes of what is pushed, and of a rank's result.
        start_limit: seconds within which every rank must start.
        given: the options as the user has written them, where ``options`` has more. price: what was said of it.
        outside: whether it is submitted from outside of a session, whose Python and packages it does not have.

    Raises:
        results.Rejected: a value cannot be pickled or is too large. NoRun: the script is missing, or the code is no
            Python. InvalidOptions: a variable of ``--env`` is not set.
    """
    check_code(cell, script)
    forwarded = _forwarded(options)
    kinds = {"cell": cell, "script": script, "module": module, "command": command}
    request: State = {
        **_request(options, given or options, forwarded, price),
        "kind": next((kind for kind, code in kinds.items() if code is not None), "call"),
        "args": list(args),
        "cwd": _cwd(),
        "path": [] if outside else [each for each in sys.path if each],
        "python": sys.executable,
        "packages": os.environ.get("CARME_PACKAGES", ""),
        "outside": outside,
        "limit": limit,
        "start_limit": start_limit + (STAGE_SECONDS if options.stage else 0.0),
    }
    if script is not None:
        request["script"] = str(Path(script).expanduser().resolve())
        if not Path(request["script"]).is_file():
            raise NoRun(f"There is no script {script}.")
    request |= {kind: code for kind, code in kinds.items() if kind in ("module", "command") and code is not None}
    # Checks that may fail come before the folder exists.
    pushed = results.dump_variables(push, limit) if push else None
    called = results.dump(call, "the function with its arguments", limit) if call is not None else None
    run = Run(_make_folder(options.name))
    if cell is not None:
        write(run.folder / "cell.py", cell.encode())
    if script is not None:
        request["script_digest"] = record.keep_script(Path(request["script"]), run.folder)
    for name, text in (("push.pkl", pushed), ("call.pkl", called)):
        if text is not None:
            write(run.folder / name, text)
    return _complete(run, request, forwarded)


def given_options(run: Run) -> RunOptions:
    """Return the options of a run as its user has written them.

    Raises:
        NoRun: it is of an older release, or its folder was deleted.
    """
    try:
        return from_json(run.request()["given"])
    except (KeyError, FileNotFoundError):
        raise NoRun(f"{run.id} is of an older release, which did not keep what repeats it.") from None


def create_again(
    old: Run,
    options: RunOptions,
    *,
    given: RunOptions,
    args: Sequence[str] | None = None,
    changed_code: bool = False,
    price: str = "",
) -> Run:
    """Create the folder of a run that repeats another one: the same code, arguments, variables and working folder.

    Args:
        given, price: as for ``create``. args: None = those of the old run.
        changed_code: whether a script that has changed since is run as it is now.

    Raises:
        NoRun: the old run's folder was deleted, or its script is gone or has changed. InvalidOptions: a variable of
            ``--env`` is not set.
    """
    try:
        before = old.request()
    except FileNotFoundError:
        raise NoRun(f"The folder of the run {old.id} has been deleted.") from None
    forwarded = _forwarded(options)
    if args and before["kind"] in ("cell", "call"):
        raise NoRun(f"{old.id} is a cell or a function of a notebook, which has no arguments.")
    python = before.get("python") or sys.executable
    if not Path(python).is_file():
        raise NoRun(f"{old.id} ran with {python}, which is not there any more. Start its code again by hand.")
    now, then = os.environ.get("CARME_PACKAGES", ""), before.get("packages", "")
    request = before | _request(options, given, forwarded, price) | {"repeats": old.id, "packages": now}
    if then and then != now:  # what pip had installed in the session of that time is not there, or not the same
        request["path"] = [each for each in before["path"] if not each.startswith(f"{then}/")]
    if args is not None:
        request["args"] = list(args)
    script = Path(before["script"]) if before["kind"] == "script" else None
    if script is not None:
        check_code(None, str(script))
        if not changed_code and source.digest(script.read_bytes()) != before.get("script_digest"):
            kept = f" What ran then is {old.folder / record.SCRIPT}." if (old.folder / record.SCRIPT).is_file() else ""
            raise NoRun(f"{script} has changed since {old.id}. Run it as it is now with --changed-code.{kept}")
    run = Run(_make_folder(options.name))
    record.copy_code(old, run.folder)
    if script is not None:
        request["script_digest"] = record.keep_script(script, run.folder)
    return _complete(run, request, forwarded)


def _forwarded(options: RunOptions) -> environment.Forwarded:
    try:
        return environment.collect(options.env, only_named=options.no_env, before=environment.session_environ())
    except ValueError as error:
        raise InvalidOptions(f"--env: {error}") from None


def _request(options: RunOptions, given: RunOptions, forwarded: environment.Forwarded, price: str) -> State:
    """Return the parts of a request that are of this run alone, also where it repeats another one."""
    names = {"env": [word.partition("=")[0] for word in options.env]}  # values may be secrets
    return {
        "asked": asdict(options) | names,
        "given": asdict(given) | names,
        "environ": forwarded.names(),
        "price": price,
        "session": os.environ.get("CARME_SESSION", ""),
        "virtual": has_virtual_gpus(),
        "key": uuid.uuid4().hex,  # the idempotency key of requests to the hub: names may be used again
    }


def _complete(run: Run, request: State, forwarded: environment.Forwarded) -> Run:
    """Write the files that every run has."""
    run.logdir.mkdir(mode=0o700)
    if request["asked"]["submit"]:
        keep_packages(run, request)
        run.set_batch_job({"state": "waiting", "said": ""})
    name = environment.SUBMITTED_FILE if request["asked"]["submit"] else environment.FILE
    write_json(run.folder / name, dict(forwarded.values))
    write_json(run.folder / "asked.json", request)
    write_json(run.folder / "state.json", initial_state(run.id, request))
    return run


def keep_packages(run: Run, request: State) -> None:
    """Keep what pip has installed in the session for a run that outlives it: the session's folder is removed."""
    then, now = str(request.get("packages") or ""), run.folder / "packages"
    if not then:
        return
    if Path(then).is_dir():
        shutil.copytree(then, now, symlinks=True, copy_function=_link)
    request["packages"] = str(now)
    request["path"] = [
        each.replace(then, str(now), 1) if each.startswith(f"{then}/") else each for each in request["path"]
    ]


def _link(source: str, target: str) -> None:
    """Link a file instead of copying it, where both are on one file system: pip replaces files, and changes none."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def check_code(cell: str | None, script: str | None) -> None:
    """Check that a cell, or a script that is Python, can be compiled.

    Raises:
        NoRun: it cannot; the message names the line.
    """
    try:
        if cell is not None:
            code_check.check_cell(cell)
        elif script is not None:
            code_check.check_script(Path(script).expanduser())
    except code_check.CodeError as error:
        raise NoRun(str(error)) from None
    except OSError as error:
        raise NoRun(f"{script} cannot be read: {error.strerror}.") from None


def _cwd() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        raise NoRun("The current folder has been deleted. Change to another one: %cd ~") from None


def initial_state(id: str, request: State) -> State:
    """Return the state of a run that has not started."""
    options = request["asked"]
    return {
        "id": id,
        "name": options["name"] or id,
        "state": "starting",
        "asked": options,
        "kind": request["kind"],
        "session": request["session"],
        "virtual": request.get("virtual", False),
        "outside": request.get("outside", False),
        "environ": request.get("environ", {}),
        "began": time.time(),
        "ended": 0.0,
        "gpu_seconds": 0,
        "gpus": 0,
        "own_gpus": 0,
        "nodes": [],
        "companions": [],
        "generation": 0,
        "restarts": [],
        "message": "",
        "stalled": "",
        "error": None,
        "conductor": None,
        "ranks": [],
    }


def launch(run: Run, timeout: float = START_TIMEOUT) -> None:
    """Start the conductor of a run and wait until it answers. It is no child process, and inherits no files.

    Raises:
        NoRun: it did not start; the message has its last line of output.
    """
    # -P: without the folder of the notebook in sys.path, where a queue.py would hide Python's own.
    # A run that is repeated has the Python of the first one, whoever repeats it.
    python = run.request().get("python") or sys.executable
    argv = [python, "-P", "-m", "carme_hub.training.conduct", str(run.folder)]
    with (run.folder / "conductor.log").open("ab") as log:
        os.fchmod(log.fileno(), 0o600)
        try:  # the conductor forks when it answers, and the parent ends
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, timeout=timeout
            )
            why = f" with status {done.returncode}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            why = f" within {timeout:.0f} s"
            (run.folder / "stop").touch(mode=0o600)  # it may have started, and ends at its first check
    if why:
        (run.folder / environment.FILE).unlink(missing_ok=True)
        lines = (run.folder / "conductor.log").read_text(errors="replace").strip().splitlines()
        message = f"The conductor of {run.id} did not start{why}{': ' + lines[-1] if lines else ''}"
        message += f". Its output is in {run.folder / 'conductor.log'}"
        write_json(
            run.folder / "state.json", run.state() | {"state": "failed", "message": message, "ended": time.time()}
        )
        raise NoRun(message)


def _make_folder(name: str) -> Path:
    """Create and return a new folder for a run."""
    top = root()
    top.mkdir(mode=0o700, parents=True, exist_ok=True)
    for each in _folder_names(name):
        with contextlib.suppress(FileExistsError):
            (top / each).mkdir(mode=0o700)
            return top / each
    raise NoRun("There are too many runs of this name. Choose another.")


def _folder_names(name: str) -> Iterator[str]:
    base = name or time.strftime("%Y%m%d-%H%M%S")  # by the local clock, for users
    yield base
    for number in range(2, 10_000):
        yield f"{base}-{number}"
