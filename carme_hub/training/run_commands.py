"""The commands ``carme-hub runs …``: list runs, follow, compare and repeat them, stop and delete them."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from typing import Any

from carme_hub.training.launch import start
from carme_hub.training.launch.new_run import given_options
from carme_hub.training.notebook.follow import Follower
from carme_hub.training.notebook.live import ALL_LINES, POLL_INTERVAL, Tail, Terminal
from carme_hub.training.records import record
from carme_hub.training.run import description, keep, run_folder
from carme_hub.training.run.failures import CannotRun
from carme_hub.training.run.run_options import RunOptions, parse_changes, parse_duration

from . import distributed

REPEAT = """carme-hub runs repeat RUN [options] [--all] [--changed-code] [-- new arguments]

Start a run again: the same code, arguments, variables and working folder, with the options of that time. Options that
you write replace those: -n 8, --nodes 2, --time 2h, and the others of carme-hub train. What follows -- replaces the
arguments of its script, module or command. A script that has changed since is run with --changed-code only. Variables
of the environment are those of now.
"""
SHELL = """carme-hub runs shell RUN [--rank N] [-- command …]

Open a shell in a rank of a live run, or run a command there: in its container, on its node, with its environment and
its working folder. The rank goes on meanwhile; its process is $CARME_RANK_PID. What is started counts towards the
memory of the rank's job, and ends with the rank, or with this terminal. Without --rank it is rank 0.

    carme-hub runs shell RUN --rank 3
    carme-hub runs shell RUN --rank 3 -- nvidia-smi
"""
#: Options of ``repeat`` alone.
OWN: dict[str, dict[str, Any]] = {"--all": {"action": "store_true"}, "--changed-code": {"action": "store_true"}}


def _list(arguments: argparse.Namespace) -> None:
    found = distributed.runs(live=arguments.live, tag=arguments.tag, starred=arguments.starred).states()
    if arguments.json:
        print_text("".join(json.dumps(each) + "\n" for each in found))
    else:
        print_text(description.runs_text(found, time.time()) + "\n")


def _log(arguments: argparse.Namespace) -> None:
    run = run_folder.Run.load(arguments.run)
    if not arguments.follow:
        at = 0
        while (piece := run.read(arguments.rank, at))[0]:
            print_text(piece[0])
            at = piece[1]
        return None
    tail, printed = Tail(str(run.folder / f"rank-{arguments.rank}.log"), *ALL_LINES), 0
    while True:
        ended = run.state()["state"] in run_folder.ENDED
        tail.look(whole=ended)
        new, printed = tail.total - printed, tail.total
        print_text("".join(f"{line}\n" for line in list(tail)[-new:] if new))
        if ended:
            return None
        time.sleep(POLL_INTERVAL)


def _watch(arguments: argparse.Namespace) -> int:
    state = Follower(run_folder.Run.load(arguments.run), Terminal(all_ranks=arguments.all)).follow()
    return 0 if state["state"] == "finished" else 1


def _stop(arguments: argparse.Namespace) -> int:
    state = run_folder.Run.load(arguments.run).stop()
    print_text(f"{state['id']}: {description.STATE_LABELS[state['state']].lower()}\n")
    return 0 if state["state"] in run_folder.ENDED else 1


def _stacks(arguments: argparse.Namespace) -> None:
    print_text(f"{distributed.stacks(run_folder.Run.load(arguments.run))}\n")


def shell(words: list[str]) -> int:
    """Open a shell in a rank: ``carme-hub runs shell RUN [--rank N] [-- command …]``."""
    from carme_hub.training.shell.terminal import open_shell

    at = words.index("--") if "--" in words else len(words)
    words, program = words[:at], words[at + 1 :]
    if not words or words[0] in ("-h", "--help"):
        print_text(SHELL)
        return 0 if words else 2
    parser = argparse.ArgumentParser(prog="carme-hub runs shell", usage=SHELL.partition("\n")[0], add_help=False)
    parser.add_argument("run")
    parser.add_argument("--rank", type=int, default=0)
    arguments = parser.parse_args(words)
    return open_shell(run_folder.Run.load(arguments.run), arguments.rank, program, say)


def _resize(arguments: argparse.Namespace) -> None:
    answer = distributed.resize(arguments.change, run_folder.Run.load(arguments.run))
    print_text(f"{answer.get('message') or 'Resize requested.'}\n")


def _show(arguments: argparse.Namespace) -> None:
    run = run_folder.Run.load(arguments.run)
    if arguments.json:
        print_text(
            json.dumps({"state": run.state(), "record": record.read_record(run), "request": run.request()}) + "\n"
        )
    elif arguments.code:
        print_text(record.code_of(run))
    else:
        print_text(f"{distributed.compare(run)}\n")


def _compare(arguments: argparse.Namespace) -> None:
    runs = [run_folder.Run.load(each) for each in arguments.run]
    if len(runs) < 2:
        raise CannotRun("Which runs? carme-hub runs compare ONE OTHER …")
    print_text(f"{distributed.compare(*runs, everything=arguments.everything)}\n")


def _mark(arguments: argparse.Namespace) -> None:
    run = run_folder.Run.load(arguments.run)
    words = {name: getattr(arguments, name) for name in ("star", "tag", "untag", "note")}
    print_text(f"{run.id}: {distributed.mark(run, **words)}".rstrip(": ") + "\n")


def repeat(words: list[str]) -> int:
    """Repeat a run: ``carme-hub runs repeat RUN [options] [-- its arguments]``."""
    if not words or words[0] in ("-h", "--help"):
        print_text(REPEAT)
        return 0 if words else 2
    old = run_folder.Run.load(words[0])
    options, program, own = parse_changes(words[1:], given_options(old), OWN)
    if options.dry_run or (options.requeue and not options.submit):
        raise CannotRun("--dry-run and --requeue are for carme-hub train.")
    run = start.begin_again(
        old, options, say, args=program if program or "--" in words else None, changed_code=own.changed_code
    )
    return follow_run(run, options, all_ranks=own.all)


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
            return print_text(f"No run ended more than {arguments.older_than} ago.\n")
    if not runs:
        raise CannotRun("Which runs? carme-hub runs rm NAME …, or --older-than 30d")
    for run in dict.fromkeys(runs):
        [name] = distributed.delete(run)
        print_text(f"{run.id} deleted. Undo within 7 days: carme-hub runs restore {name}\n")
    return None


def _restore(arguments: argparse.Namespace) -> None:
    print_text(f"{distributed.restore(arguments.run).id} restored\n")


def _deleted(_: argparse.Namespace) -> None:
    print_text("".join(f"{name}\n" for name in keep.deleted()) or "No deleted run can be restored.\n")


def _keep(arguments: argparse.Namespace) -> None:
    now = keep.limits()
    if arguments.days is not None or arguments.gib is not None:
        days = now.days if arguments.days is None else arguments.days
        now = keep.Limits(days, now.gib if arguments.gib is None else arguments.gib)
        keep.set_limits(now)
    days = f"{now.days} days after their end" if now.days else "without a limit of time"
    print_text(f"Runs are kept {days}, {f'at most {now.gib} GiB of them' if now.gib else 'whatever their size'}.\n")


def follow_run(run: run_folder.Run, options: RunOptions, *, all_ranks: bool) -> int:
    """Follow a run to its end, unless it is detached or a batch job."""
    if options.detach or options.submit:
        print_text(f"{run.id}\n")
        how = "is a batch job and outlives this session" if options.submit else "continues without this terminal"
        if run.state().get("outside"):
            say(f"It is a batch job: carme-hub runs watch|stop {run.id}. It writes into ~/.carme/runs/{run.id} there.")
        else:
            say(f"It {how}: carme-hub runs watch|log|stop {run.id}. Its files: {run.folder}")
    else:
        start.follow(run, Terminal(all_ranks=all_ranks))
    return 0


def add_parser(parts: Any) -> None:
    """Add the commands to a parser of ``carme-hub``."""
    own = parts.add_parser("runs", help="list runs, read their logs, stop them", allow_abbrev=False)
    own.add_argument("--live", action="store_true", help="only runs that have not ended")
    own.add_argument("--json", action="store_true", help="one JSON document per line")
    own.set_defaults(do=_list)
    own.add_argument("--tag", default="", help="only runs with this tag")
    own.add_argument("--starred", action="store_true", help="only runs with a star")
    words = "show|compare|repeat|mark|log|watch|stacks|shell|stop|resize|rm|restore|deleted|keep"
    below = own.add_subparsers(metavar=words)
    _add_records(below)
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
    words = "open a shell in a rank, or run a command there; the rank goes on meanwhile"
    below.add_parser("shell", help=words, add_help=False)
    _add_keeping(below)


def _add_records(below: Any) -> None:
    """Add the commands that find, compare and repeat runs."""
    words = "print all that is known of a run: result, options, parameters, code, packages"
    show = below.add_parser("show", help=words, description=f"{words[:1].upper()}{words[1:]}.")
    show.add_argument("run", help="name of the run")
    how = show.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="as one JSON document")
    how.add_argument("--code", action="store_true", help="print the code that ran: its cell, or its script")
    show.set_defaults(do=_show)
    words = "print what differs between runs"
    compare = below.add_parser("compare", help=words, description=f"{words[:1].upper()}{words[1:]}.")
    compare.add_argument("run", nargs="+", help="names of runs")
    compare.add_argument("--everything", action="store_true", help="also what does not differ")
    compare.set_defaults(do=_compare)
    below.add_parser("repeat", help="start it again; see `carme-hub runs repeat --help`", add_help=False)
    words = "give a run a star, tags or a note"
    mark = below.add_parser("mark", help=words, description=f"{words[:1].upper()}{words[1:]}.")
    mark.add_argument("run", help="name of the run")
    mark.add_argument("--star", action=argparse.BooleanOptionalAction, default=None, help="give it a star, or take it")
    mark.add_argument("--tag", action="append", default=[], help="add this tag; may be given several times")
    mark.add_argument("--untag", action="append", default=[], metavar="TAG", help="remove this tag")
    mark.add_argument("--note", help='its note; "" removes it')
    mark.set_defaults(do=_mark)


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


def print_text(text: str) -> None:
    """Print a text as it is."""
    sys.stdout.write(text)
    sys.stdout.flush()


def say(text: str) -> None:
    """Print a line beside the output."""
    sys.stderr.write(f"{text}\n")
