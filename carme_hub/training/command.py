"""The ``carme-hub`` command in a session: the functions of ``distributed``, for scripts and terminals.

The images install it as ``carme-hub``; a batch script of ``--dry-run`` calls it as a module.
"""

from __future__ import annotations

import argparse
import base64
import importlib.util
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from carme_hub.training.launch import start
from carme_hub.training.launch.batch_script import NO_REQUEUE, batch_script
from carme_hub.training.run import control, keep, results, run_folder
from carme_hub.training.run.failures import CannotRun, Interrupted, RunFailed
from carme_hub.training.run.run_options import (
    InvalidOptions,
    RunOptions,
    parse_with_program,
)
from carme_hub.training.session import companions, outside
from carme_hub.training.session.batch_job import DirectBroker, broker_here
from carme_hub.training.session.step_broker import NoBroker

from . import run_commands
from .here import OUT_OF_TIME
from .magic import with_backend
from .run_commands import follow_run, print_text, say

TRAIN = """carme-hub train -n RANKS [options] [--all] script.py [its arguments]
carme-hub train -n RANKS [options] [--all] -m package.module [its arguments]
carme-hub train -n RANKS [options] [--all] -- command [its arguments]

Run a script, a module or any command as RANKS processes, on the GPUs of this session and, where it has too few, of a
companion job. The output of rank 0 is printed here, that of the others is kept in files; --all prints all lines, each
with its rank before it. The options are those of %%distributed: --nodes N, --gpus-per-task N, --gpus-per-node N,
--cpus-per-task N, --mem-per-gpu 16G, --backend torchrun|horovod|mpi, --elastic FEWEST:MOST, --time 30m, --name NAME,
--env NAME[=VALUE], --no-env, --max-restarts N, --profile FIRST:LAST, --only-companion, --stage, --wait, --detach,
--submit, --dry-run, --requeue. --submit (or --batch) makes it a batch job, which outlives this session and needs
--time. What you have exported since the session began goes along to the ranks, unless you write --no-env. Ctrl-C ends
all ranks. Exit status: 0 the run finished, 1 it failed, 2 it could not start, 130 it was stopped.

Outside of a session, on a login node or a laptop, --submit asks the hub: --hub https://… (or JUPYTERHUB_API_URL),
--token-file FILE (mode 0600, with a token of the hub's page /hub/token; or JUPYTERHUB_API_TOKEN), --ca FILE, and
--option NAME=VALUE as in the form that starts servers: --option profile=gpu --option image=training. The script goes
along; other files are those of your home on the cluster.
"""
#: Options of the command alone; a batch script passes a cell with the last two.
OWN: dict[str, dict[str, Any]] = {
    "--all": {"action": "store_true"},
    "--cell": {"default": "", "help": argparse.SUPPRESS},
    "--push-file": {"default": "", "help": argparse.SUPPRESS},
}
#: Options of the command outside of a session.
OUTSIDE: dict[str, dict[str, Any]] = {
    "--hub": {"default": ""},
    "--token-file": {"default": ""},
    "--ca": {"default": ""},
    "--option": {"action": "append", "default": []},
}
FAILED, CANNOT, STOPPED = 1, 2, 130


def main(words: Sequence[str] | None = None) -> int:
    """Run the command of these arguments, and return the exit status."""
    argv = list(sys.argv[1:] if words is None else words)
    try:
        if argv[:1] == ["train"]:
            return _train(argv[1:])
        if argv[:2] == ["runs", "repeat"]:
            return run_commands.repeat(argv[2:])
        if argv[:2] == ["runs", "shell"]:
            return run_commands.shell(argv[2:])
        if argv[:1] == ["scaling"]:
            from carme_hub.training.scaling import command

            return command.main(argv[1:])
        if argv[:1] == ["image"]:
            from carme_hub.training.images import command as image_command

            return image_command.main(argv[1:])
        arguments = _parser().parse_args(argv)
        return int(arguments.do(arguments) or 0)
    except Interrupted as error:
        say(str(error))
        return STOPPED
    except RunFailed as error:
        say("\n".join(error.lines()))
        return FAILED
    except (
        CannotRun,
        InvalidOptions,
        keep.CannotDelete,
        run_folder.NoRun,
        control.NoConductor,
        control.RequestRefused,
    ) as error:
        say(f"carme-hub: {error}")
        return CANNOT
    except KeyboardInterrupt:
        return STOPPED
    except BrokenPipeError:  # the reader has gone, as head(1) does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _train(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print_text(TRAIN)
        return 0 if words else CANNOT
    options, program, own = parse_with_program(with_backend(words), OWN | OUTSIDE)
    what = _what(options, own, program)
    access = _access(options, own)
    if options.dry_run:
        print_text(batch_script(options, program=program))
        return 0
    if options.requeue and not options.submit and not isinstance(broker_here(), DirectBroker):
        raise CannotRun(NO_REQUEUE)
    run = start.begin(options, say, access, **what)
    follow_run(run, options, all_ranks=own.all)
    if options.requeue and not options.submit and (run.folder / OUT_OF_TIME).exists():
        _requeue()
    return 0


def _access(options: RunOptions, own: argparse.Namespace) -> outside.Access | None:
    """Return how the hub is reached for a run that is submitted from outside of a session; None for all others.

    Raises:
        CannotRun: the options do not fit together, or no hub is named.
    """
    given = next((name for name in OUTSIDE if getattr(own, name.lstrip("-").replace("-", "_"))), "")
    if given and not (options.submit and outside.is_outside()):
        raise CannotRun(f"{given} is for --submit outside of a session: here the session says what a job gets.")
    if not options.submit or options.dry_run or not outside.is_outside():
        return None
    pairs = [word.partition("=") for word in own.option]
    if wrong := next((word for word, pair in zip(own.option, pairs, strict=True) if not pair[0] or not pair[2]), ""):
        raise CannotRun(f"--option {wrong[:80]}: write NAME=VALUE, such as profile=gpu or image=training.")
    try:
        return outside.access(own.hub, own.token_file, own.ca, {name: text for name, _, text in pairs}, os.environ)
    except companions.Refused as error:
        raise CannotRun(str(error)) from None


def _requeue() -> None:
    """Requeue this Slurm job."""
    broker = broker_here()
    if isinstance(broker, DirectBroker):
        say("The run stopped because its time was nearly over. Slurm will run this job again.")
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


def _install(arguments: argparse.Namespace) -> int:
    from carme_hub.training.templates import kernels

    try:
        where = kernels.install(user=arguments.user, prefix=Path(arguments.prefix) if arguments.prefix else None)
    except kernels.KernelError as error:
        raise CannotRun(str(error)) from None
    print_text("".join(f"{path}\n" for path in where))
    return 0


def _templates(_: argparse.Namespace) -> None:
    from carme_hub.training import templates

    try:
        print_text(templates.listed())
    except templates.TemplateError as error:
        raise CannotRun(str(error)) from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="carme-hub", description="Train on many GPUs from this session.", allow_abbrev=False
    )
    parts = parser.add_subparsers(required=True, metavar="train|runs|scaling|image|kernels|templates")
    parts.add_parser("train", help="run a script as many ranks; see `carme-hub train --help`", add_help=False)
    parts.add_parser("scaling", help="measure how a training scales", add_help=False)
    parts.add_parser("image", help="build images of your own", add_help=False)
    run_commands.add_parser(parts)
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


if __name__ == "__main__":
    sys.exit(main())
