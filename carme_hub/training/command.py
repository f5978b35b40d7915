"""The ``carme-hub`` command in a session: the functions of ``distributed``, for scripts and terminals.

The images install it as ``carme-hub``; a batch script of ``--dry-run`` calls it as a module.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import importlib.util
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from carme_hub.training.launch import start
from carme_hub.training.launch.batch_script import NO_REQUEUE, batch_script
from carme_hub.training.notebook.follow import Follower
from carme_hub.training.notebook.live import ALL_LINES, POLL_INTERVAL, Tail, Terminal
from carme_hub.training.run import control, description, keep, results, run_folder
from carme_hub.training.run.failures import CannotRun, Interrupted, RunFailed
from carme_hub.training.run.run_options import InvalidOptions, RunOptions, parse_duration, parse_with_program
from carme_hub.training.session.batch_job import DirectBroker, broker_here
from carme_hub.training.session.step_broker import NoBroker

from . import distributed
from .here import OUT_OF_TIME
from .magic import with_backend

TRAIN = """carme-hub train -n RANKS [options] [--all] script.py [its arguments]
carme-hub train -n RANKS [options] [--all] -m package.module [its arguments]
carme-hub train -n RANKS [options] [--all] -- command [its arguments]

Run a script, a module or any command as RANKS processes, on the GPUs of this session and, where it has too few, of a
companion job. The output of rank 0 is printed here, that of the others is kept in files; --all prints all lines, each
with its rank before it. The options are those of %%distributed: --nodes N, --gpus-per-task N, --gpus-per-node N,
--cpus-per-task N, --mem-per-gpu 16G, --backend torchrun|horovod|mpi, --elastic FEWEST:MOST, --time 30m, --name NAME,
--env NAME[=VALUE], --no-env, --max-restarts N, --only-companion, --wait, --detach, --dry-run, --requeue. What you have
exported since the session began goes along to the ranks, unless you write --no-env. Ctrl-C ends all ranks. Exit status:
0 the run finished, 1 it failed, 2 it could not start, 130 it was stopped.
"""
#: Options of the command alone; a batch script passes a cell with the last two.
OWN: dict[str, dict[str, Any]] = {
    "--all": {"action": "store_true"},
    "--cell": {"default": "", "help": argparse.SUPPRESS},
    "--push-file": {"default": "", "help": argparse.SUPPRESS},
}
FAILED, CANNOT, STOPPED = 1, 2, 130


def main(words: Sequence[str] | None = None) -> int:
    """Run the command of these arguments, and return the exit status."""
    argv = list(sys.argv[1:] if words is None else words)
    try:
        if argv[:1] == ["train"]:
            return _train(argv[1:])
        if argv[:1] == ["scaling"]:
            from carme_hub.training.scaling import command

            return command.main(argv[1:])
        arguments = _parser().parse_args(argv)
        return int(arguments.do(arguments) or 0)
    except Interrupted as error:
        _say(str(error))
        return STOPPED
    except RunFailed as error:
        _say("\n".join(error.lines()))
        return FAILED
    except (
        CannotRun,
        InvalidOptions,
        keep.CannotDelete,
        run_folder.NoRun,
        control.NoConductor,
        control.RequestRefused,
    ) as error:
        _say(f"carme-hub: {error}")
        return CANNOT
    except KeyboardInterrupt:
        return STOPPED
    except BrokenPipeError:  # the reader has gone, as head(1) does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _train(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        _print(TRAIN)
        return 0 if words else CANNOT
    options, program, own = parse_with_program(with_backend(words), OWN)
    what = _what(options, own, program)
    if options.dry_run:
        _print(batch_script(options, program=program))
        return 0
    if options.requeue and not isinstance(broker_here(), DirectBroker):
        raise CannotRun(NO_REQUEUE)
    run = start.begin(options, _say, **what)
    if options.detach:
        _print(f"{run.id}\n")
        _say(f"It continues without this terminal: carme-hub runs watch|log|stop {run.id}. Its files: {run.folder}")
        return 0
    start.follow(run, Terminal(all_ranks=own.all))
    if options.requeue and (run.folder / OUT_OF_TIME).exists():
        _requeue()
    return 0


def _requeue() -> None:
    """Requeue this Slurm job."""
    broker = broker_here()
    if isinstance(broker, DirectBroker):
        _say("The run stopped because its time was nearly over. Slurm will run this job again.")
        try:
            broker.requeue()
        except NoBroker as error:
            raise CannotRun(f"{error} Submit the script again to continue from its checkpoint.") from None


def _what(options: RunOptions, own: argparse.Namespace, program: list[str]) -> dict[str, Any]:
    if own.cell:
        push = base64.decodebytes(Path(own.push_file).read_bytes()) if own.push_file else b""
        return {"cell": Path(own.cell).read_text(), "push": results.load_variables(push) if push else None}
    if options.push or options.pull:
        raise CannotRun("--push and --pull work on notebook variables; a script has files and arguments.")
    return program_of(program)


def program_of(words: Sequence[str]) -> dict[str, Any]:
    """Return what ranks run for ``script.py …``, ``-m package.module …`` or any command; see ``new_run.create``.

    Raises:
        CannotRun: there is none.
    """
    if not words or list(words) == ["-m"]:
        raise CannotRun("Which script? carme-hub train -n 4 script.py, -m package.module, or any command")
    first, *args = words
    if first == "-m":
        name, *args = args
        if not _has_module(name.partition(".")[0]):
            raise CannotRun(f"There is no module {name} here: neither in {Path.cwd()} nor installed.")
        return {"module": name, "args": args}
    path = Path(first).expanduser()
    if path.is_file() and (path.suffix in (".py", ".pyw") or not os.access(path, os.X_OK)):
        return {"script": first, "args": args}
    if path.is_file() or ("/" not in first and shutil.which(first)):
        # Not resolved: the Python of a virtual environment is a link, and finds its packages by its own path.
        return {"command": os.path.abspath(path) if path.is_file() else first, "args": args}  # noqa: PTH100
    raise CannotRun(f"There is no script {first}." if "/" in first or "." in first else f"There is no command {first}.")


def _has_module(name: str) -> bool:
    """Return whether a module can be found as ``python -m`` does it: the current folder comes first."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
    finally:
        sys.path.pop(0)


# -- runs -------------------------------------------------------------------------------------------------------------


def _list(arguments: argparse.Namespace) -> None:
    found = distributed.runs(live=arguments.live).states()
    if arguments.json:
        _print("".join(json.dumps(each) + "\n" for each in found))
    else:
        _print(description.runs_text(found, time.time()) + "\n")


def _log(arguments: argparse.Namespace) -> None:
    run = run_folder.Run.load(arguments.run)
    if not arguments.follow:
        at = 0
        while (piece := run.read(arguments.rank, at))[0]:
            _print(piece[0])
            at = piece[1]
        return None
    tail, printed = Tail(str(run.folder / f"rank-{arguments.rank}.log"), *ALL_LINES), 0
    while True:
        ended = run.state()["state"] in run_folder.ENDED
        tail.look(whole=ended)
        new, printed = tail.total - printed, tail.total
        _print("".join(f"{line}\n" for line in list(tail)[-new:] if new))
        if ended:
            return None
        time.sleep(POLL_INTERVAL)


def _watch(arguments: argparse.Namespace) -> int:
    state = Follower(run_folder.Run.load(arguments.run), Terminal(all_ranks=arguments.all)).follow()
    return 0 if state["state"] == "finished" else FAILED


def _stop(arguments: argparse.Namespace) -> int:
    state = run_folder.Run.load(arguments.run).stop()
    _print(f"{state['id']}: {description.STATE_LABELS[state['state']].lower()}\n")
    return 0 if state["state"] in run_folder.ENDED else FAILED


def _stacks(arguments: argparse.Namespace) -> None:
    _print(f"{distributed.stacks(run_folder.Run.load(arguments.run))}\n")


def _resize(arguments: argparse.Namespace) -> None:
    answer = distributed.resize(arguments.change, run_folder.Run.load(arguments.run))
    _print(f"{answer.get('message') or 'Resize requested.'}\n")


def _delete(arguments: argparse.Namespace) -> None:
    runs: list[run_folder.Run] = [run_folder.Run.load(name) for name in arguments.run]
    if arguments.older_than:
        before = time.time() - parse_duration(arguments.older_than)
        for run in distributed.runs():
            with contextlib.suppress(run_folder.NoRun):  # it was deleted meanwhile
                state = run.state()
                ended = float(state.get("ended") or state["began"])
                runs += [run] if state["state"] in run_folder.ENDED and ended < before else []
        if not runs:
            return _print(f"No run ended more than {arguments.older_than} ago.\n")
    if not runs:
        raise CannotRun("Which runs? carme-hub runs rm NAME …, or --older-than 30d")
    for run in dict.fromkeys(runs):
        [name] = distributed.delete(run)
        _print(f"{run.id} deleted. Undo within 7 days: carme-hub runs restore {name}\n")
    return None


def _restore(arguments: argparse.Namespace) -> None:
    _print(f"{distributed.restore(arguments.run).id} restored\n")


def _deleted(_: argparse.Namespace) -> None:
    _print("".join(f"{name}\n" for name in keep.deleted()) or "No deleted run can be restored.\n")


def _keep(arguments: argparse.Namespace) -> None:
    now = keep.limits()
    if arguments.days is not None or arguments.gib is not None:
        days = now.days if arguments.days is None else arguments.days
        now = keep.Limits(days, now.gib if arguments.gib is None else arguments.gib)
        keep.set_limits(now)
    days = f"{now.days} days after their end" if now.days else "without a limit of time"
    _print(f"Runs are kept {days}, {f'at most {now.gib} GiB of them' if now.gib else 'whatever their size'}.\n")


def _install(arguments: argparse.Namespace) -> int:
    from carme_hub.training.templates import kernels

    try:
        where = kernels.install(user=arguments.user, prefix=Path(arguments.prefix) if arguments.prefix else None)
    except kernels.KernelError as error:
        raise CannotRun(str(error)) from None
    _print("".join(f"{path}\n" for path in where))
    return 0


def _templates(_: argparse.Namespace) -> None:
    from carme_hub.training import templates

    try:
        _print(templates.listed())
    except templates.TemplateError as error:
        raise CannotRun(str(error)) from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="carme-hub", description="Train on many GPUs from this session.", allow_abbrev=False
    )
    parts = parser.add_subparsers(required=True, metavar="train|runs|scaling|kernels|templates")
    parts.add_parser("train", help="run a script as many ranks; see `carme-hub train --help`", add_help=False)
    parts.add_parser("scaling", help="measure how a training scales", add_help=False)
    own = parts.add_parser("runs", help="list runs, read their logs, stop them", allow_abbrev=False)
    own.add_argument("--live", action="store_true", help="only runs that have not ended")
    own.add_argument("--json", action="store_true", help="one JSON document per line")
    own.set_defaults(do=_list)
    below = own.add_subparsers(metavar="log|watch|stacks|stop|resize|rm|restore|deleted|keep")
    for name, do, words in (
        ("log", _log, "print the output of a rank"),
        ("watch", _watch, "follow a run until it ends; Ctrl-C also stops the run, unless it is detached"),
        ("stacks", _stacks, "print where each rank is: the stacks of its threads"),
        ("stop", _stop, "end it"),
        ("resize", _resize, "add ranks to an elastic run, or remove some"),
    ):
        part = below.add_parser(name, help=words, description=f"{words[:1].upper()}{words[1:]}.")
        part.add_argument("run", help="name of the run, as `carme-hub runs` lists it")
        part.set_defaults(do=do)
        if name == "log":
            part.add_argument("--rank", type=int, default=0, help="number of the rank (default: 0)")
            part.add_argument("--follow", action="store_true", help="continue until the run has ended")
        if name == "watch":
            part.add_argument("--all", action="store_true", help="print all ranks, each line with its rank before it")
        if name == "resize":
            part.add_argument("change", type=int, help="how many ranks to add or remove, such as +2 or -1")
    _add_keeping(below)
    words = "list the templates of distributed trainings, and their scripts"
    parts.add_parser("templates", help=words, description=f"{words[:1].upper()}{words[1:]}.").set_defaults(
        do=_templates
    )
    kernels = parts.add_parser("kernels", help="install the Jupyter kernels of Carme Hub").add_subparsers(
        required=True, metavar="install"
    )
    install = kernels.add_parser("install", help="install them for this Python, for yourself, or below a prefix")
    place = install.add_mutually_exclusive_group()
    place.add_argument("--user", action="store_true", help="for yourself (the default is this Python's prefix)")
    place.add_argument("--prefix", default="", help="below this folder, as PREFIX/share/jupyter/kernels")
    install.set_defaults(do=_install)
    return parser


def _add_keeping(below: Any) -> None:
    """Add the commands that delete runs and keep them."""
    remove = below.add_parser("rm", help="delete runs that have ended; restore undoes it", description="Delete runs.")
    remove.add_argument("run", nargs="*", help="names of runs")
    remove.add_argument("--older-than", default="", metavar="30d", help="all that ended before")
    remove.set_defaults(do=_delete)
    restore = below.add_parser("restore", help="undo rm, for 7 days", description="Restore a deleted run.")
    restore.add_argument("run", help="name of the run, as `carme-hub runs deleted` lists it")
    restore.set_defaults(do=_restore)
    below.add_parser("deleted", help="list deleted runs", description="List deleted runs.").set_defaults(do=_deleted)
    limits = below.add_parser("keep", help="show or set how long runs are kept", description="Limits of old runs.")
    limits.add_argument("--days", type=int, help="after their end; 0 = no limit")
    limits.add_argument("--gib", type=int, help="of all together; 0 = no limit")
    limits.set_defaults(do=_keep)


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
