#!/usr/bin/python3 -IS
# ruff: noqa: UP006, UP035, UP045, PTH100, PTH105, PTH110, PTH112, PTH118, PTH120, PTH123
"""carme-stage: moves the data of one session into its scratch folder, and what it names out of it, as the user.

``carme-stage FOLDER in|out|final|late|watch|mount``. FOLDER is the session's own beside its scratch (0700, the user's):

* ``plan.json``: what to move (``carme-staging`` writes it at the start of the job).
* ``progress.json``: how far it is, replaced as a whole; the same is sent to the hub where the plan says how.
* ``journal``: the files that are done. ``lock``: of several that are started, one works.

``in`` runs before the container; ``watch`` beside it, and begins ``out`` early enough before the time limit for the
speed that was measured; ``final`` after the end, from Slurm's Epilog; ``late`` whenever the Epilog could not finish.
``mount`` has object storage as folders until it is ended. Each pass skips what is done, so every one of them may be
killed anywhere and run again. Exit status: 0 all of it is done, 1 something is not (``progress.json`` says which file
and why), 2 there is no plan, 3 the user has decided that what is left may go. carme-stage-files, -journal, -remote,
-mount and -report lie beside this file. Standard library only, Python 3.6.
"""

import fcntl
import json
import os
import re
import signal
import sys
import threading
import time

TYPE_CHECKING = False  # as typing.TYPE_CHECKING
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple  # noqa: F401  in comments for Python 3.6

DONE, FAILED, NO_PLAN, DISCARD = 0, 1, 2, 3
#: Seconds between two lines of progress, and between two looks of ``watch``.
TELL, LOOK = 1.0, 10.0
#: Bytes in a second that are expected where nothing was measured; seconds kept in hand, and the same as a factor.
USUAL_SPEED, MARGIN, FACTOR = 50e6, 30.0, 1.5
#: The most files that are named with a reason.
MOST_ERRORS = 20
PARALLEL = 4


def beside(name: str) -> "Any":
    """Load a program that lies beside this one: ``carme-stage-NAME`` on a node, ``NAME.py`` in the package."""
    folder = os.path.dirname(os.path.realpath(__file__))
    path = os.path.join(folder, f"carme-stage-{name}")
    path = path if os.path.exists(path) else os.path.join(folder, f"{name}.py")
    module = type(os)(name)
    module.__file__ = path
    with open(path, encoding="utf-8") as file:
        exec(compile(file.read(), path, "exec"), module.__dict__)  # noqa: S102
    return module


def replace(folder: str, name: str, value: "Any", durable: bool = False) -> None:
    """Write a JSON file in one piece; ``durable``: it is on disk then."""
    path = os.path.join(folder, name)
    new = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(new, "w", encoding="utf-8") as file:
        file.write(json.dumps(value))
        if durable:
            file.flush()
            os.fsync(file.fileno())
    os.replace(path + ".new", path)


class Pass:
    """One pass over the entries of one direction.

    Args:
        folder: with the plan. verb: the second argument of the command.
    """

    def __init__(self, folder: str, verb: str, plan: "Dict[str, Any]") -> None:
        self.folder, self.verb, self.plan = folder, verb, plan
        self.way = "in" if verb == "in" else "out"
        self.scratch, self.tag = str(plan["scratch"]), str(plan["session"])[:8]
        self.parallel = int(plan.get("parallel") or PARALLEL)
        self.lock, self.stopped = threading.Lock(), False
        self.bytes = self.files = 0
        self.totals = {}  # type: Dict[str, Tuple[int, int]]
        self.errors = []  # type: List[Dict[str, str]]
        self.failures = 0
        self.began, self.last, self.answer = time.time(), 0.0, {}  # type: float, float, Dict[str, Any]
        self.seen, self.report = [(self.began, 0)], None  # type: List[Tuple[float, int]], Any
        self.state, self.discard = "moving", False

    def note(self, size: int, files: int) -> None:
        """Count bytes and files that are copied."""
        with self.lock:
            self.bytes, self.files = self.bytes + size, self.files + files

    def fail(self, name: str, why: str) -> None:
        """Name a file that is not copied, with the reason; the first of a great many."""
        with self.lock:
            self.failures += 1
            if len(self.errors) < MOST_ERRORS:
                self.errors.append({"file": shown(name, self.scratch), "why": str(why)[:500]})

    def stop(self) -> bool:
        """Return whether to stop; what is done stays done."""
        return self.stopped

    def progress(self) -> "Dict[str, Any]":
        """Return how far it is. ``speed``: bytes in a second, of the last ten; ``left``: seconds, 0 = not known."""
        now, moved = time.time(), self.bytes
        total, files_total = (sum(sizes) for sizes in zip((0, 0), *list(self.totals.values())))  # noqa: B905  Python 3.10
        self.seen = [*[each for each in self.seen if each[0] > now - 10][-40:], (now, moved)]
        since, before = self.seen[0]
        speed = (moved - before) / (now - since) if now - since > 0.2 else 0.0
        left = max(0.0, total - moved) / speed if speed > 0 and self.state == "moving" else 0.0
        return {
            "way": self.way,
            "node": str(self.plan.get("node", "")),
            "pass": self.verb,
            "state": self.state,
            "bytes": moved,
            "total": max(total, moved),
            "files": self.files,
            "files_total": max(files_total, self.files),
            "speed": int(speed),
            "mean": int(moved / max(now - self.began, 0.001)),
            "left": int(left + 0.5),
            "errors": list(self.errors),
            "failures": self.failures,
            "began": self.began,
            "at": now,
        }

    def tell(self) -> None:
        """Write the progress, and send it to the hub."""
        found = self.progress()
        try:
            replace(self.folder, "progress.json", found)
        except OSError as error:  # the node's disk is full: the data counts, not this
            sys.stderr.write(f"progress.json: {error.strerror}\n")
        if self.plan.get("report"):
            self.report = self.report or beside("report")
            self.answer = self.report.send(self.plan["report"], found) or self.answer

    def keep_telling(self, ended: "threading.Event") -> None:
        """Tell how far it is, again and again."""
        while not ended.wait(TELL):
            self.tell()

    def run(self) -> bool:
        """Move all entries; return whether all of it is where it belongs."""
        files = beside("files")
        self.tell()
        if self.verb == "late":
            self.discard = self.answer.get("do") == "discard"
            self.plan = with_decision(self.folder, self.plan, self.answer)
        if self.discard:
            return True
        entries = [(str(each["source"]), str(each["target"])) for each in self.plan.get(self.way, ())]
        ended = threading.Event()
        teller = threading.Thread(target=self.keep_telling, args=(ended,), daemon=True)
        teller.start()
        journal = beside("journal").Journal(os.path.join(self.folder, "journal"))
        remote = rclone = None  # type: Any
        if any(is_remote(place) for each in entries for place in each):
            remote = beside("remote")
        try:
            if remote:
                home = str(self.plan.get("home") or os.environ.get("HOME", ""))
                rclone = remote.Rclone(str(self.plan.get("rclone") or "rclone"), home, self.parallel)
            if entries:
                self.measure(entries, files, remote, rclone)
            for source, target in entries:
                if not self.stopped:
                    self.entry(source, target, (files, remote, rclone, journal))
        except OSError as error:
            self.fail(error.filename or self.folder, error.strerror or str(error))
        except errors_of(remote) as error:
            self.fail("", str(error))
        finally:
            journal.close()
            ended.set()
            teller.join()
        return not self.failures and not self.stopped

    def measure(self, entries: "Any", files: "Any", remote: "Any", rclone: "Any") -> None:
        """Find out what there is to move: here at once, elsewhere while the first is copied, which says its own."""
        far = [source for source, _ in entries if self.way == "in" and is_remote(source)]
        for source in [source for source, _ in entries if source not in far]:
            self.totals[source] = files.size_of(self.path(source) if self.way == "out" else source)
        others = [source for source in far if source != entries[0][0]]
        if others:
            threading.Thread(target=self.measure_far, args=(others, remote, rclone), daemon=True).start()

    def measure_far(self, sources: "List[str]", remote: "Any", rclone: "Any") -> None:
        """Ask rclone how much there is; a copy that fails says why, and this does not."""
        for source in sources:
            try:
                found = rclone.size(source)
            except (remote.NoRemote, ValueError, TypeError):
                continue
            with self.lock:
                self.totals.setdefault(source, found)

    def path(self, name: str) -> str:
        """Return the path of a name below the scratch folder; the name was checked where it was asked for."""
        path = os.path.normpath(os.path.join(self.scratch, name.lstrip("/")))
        if path != self.scratch and not path.startswith(self.scratch + "/"):
            raise OSError(22, "is not below the scratch folder", name)
        return path + ("/" if name.endswith("/") and path != self.scratch else "")

    def entry(self, source: str, target: str, with_: "Any") -> None:
        """Move one entry."""
        files, remote, rclone, journal = with_
        told = (self.note, self.fail, self.stop)
        try:
            if self.way == "in" and is_remote(source):
                known = lambda *sizes: self.totals.update({source: sizes})  # noqa: E731
                remote.fetch(rclone, source, self.path(target), *told, known)
                return
            if self.way == "in":
                source, target = source.rstrip("/") or "/", self.path(target)
                if not os.path.exists(source):
                    self.fail(source, "there is nothing under this name, or it cannot be read")
                    return
            else:
                source = self.path(source).rstrip("/")
                if not os.path.lexists(source):
                    return  # the session made nothing there
                target = below(target, str(self.plan.get("below") or ""), folder=os.path.isdir(source))
            if is_remote(target):
                remote.send(rclone, source, target, self.tag, *told, late=self.verb == "late")
                return
            final, late, durable = self.verb != "out", self.verb == "late", self.way == "out"
            files.Copy(source, target, journal, self.tag, *told, final, late, durable).run(self.parallel)
        except (*errors_of(remote), files.CannotCopy) as error:
            self.fail(source, str(error.args[-1]))
        except OSError as error:
            self.fail(error.filename or source, error.strerror or str(error))


def is_remote(place: str) -> bool:
    """Return whether a place is one of rclone's: ``NAME:PATH``."""
    return not place.startswith("/") and ":" in place


def errors_of(remote: "Any") -> "Any":
    """Return the errors of what was loaded for rclone's places; none where that was not needed."""
    return (remote.NoRemote,) if remote else ()


def below(target: str, own: str, folder: bool) -> str:
    """Return the place of what one node of a run brings out, in a folder of its own below the target of all of them.

    Args:
        own: the folder, "" for none. folder: whether a folder is brought out; a file's is beside its target.
    """
    if not own:
        return target
    at = len(target) if folder else max(target.rfind("/"), target.find(":")) + 1
    head, name = target[:at].rstrip("/"), target[at:]
    return "{}{}{}/{}".format(head, "" if head.endswith(":") else "/", own, name).rstrip("/" if folder else "")


def shown(name: str, scratch: str) -> str:
    """Return a file's name for a message: of one in scratch, the part below it."""
    text = name[len(scratch) + 1 :] if name.startswith(scratch + "/") else name
    return "".join(c if c.isprintable() else "?" for c in text)[:500]


def read_plan(folder: str) -> "Optional[Dict[str, Any]]":
    """Return the plan, None where there is none."""
    try:
        number = os.open(os.path.join(folder, "plan.json"), os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(number, encoding="utf-8") as file:
            if os.fstat(number).st_uid != os.geteuid():  # whoever writes it chooses what is run here
                return None
            plan = json.load(file)
        return plan if isinstance(plan, dict) and plan.get("scratch") and plan.get("session") else None
    except (OSError, ValueError):
        return None


def with_decision(folder: str, plan: "Dict[str, Any]", answer: "Dict[str, Any]") -> "Dict[str, Any]":
    """Return the plan with the targets that the user has chosen since, and store it."""
    out = answer.get("out")
    if answer.get("do") != "retry" or not isinstance(out, list) or not out or out == plan.get("out"):
        return plan
    if not all(isinstance(each, dict) and set(each) == {"source", "target"} for each in out):
        return plan
    if any(not isinstance(v, str) or re.search(r"[\x00-\x1f]", v) for each in out for v in each.values()):
        return plan
    plan = {**plan, "out": out}
    replace(folder, "plan.json", plan, durable=True)
    return plan


def work(folder: str, verb: str, on_start: "Any" = None) -> int:
    """Make one pass and return the exit status."""
    plan = read_plan(folder)
    if plan is None:
        return NO_PLAN
    with open(os.path.join(folder, "lock"), "a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        current = Pass(folder, verb, plan)
        if on_start:
            on_start(current)
        done = current.run()
        words = {"in": ("done", "failed"), "out": ("moving", "moving")}.get(verb, ("done", "kept"))
        current.state = "discarded" if current.discard else words[0 if done else 1]
        current.tell()
        return DISCARD if current.discard else DONE if done else FAILED


def watch(folder: str) -> int:
    """Begin to bring the output out before the time limit, early enough for the speed that was measured."""
    plan = read_plan(folder)
    if plan is None or not plan.get("out"):
        return DONE
    files, mean = beside("files"), 0.0
    scratch = str(plan["scratch"])
    only = open(os.path.join(folder, "watch-lock"), "a", encoding="utf-8")  # noqa: SIM115  until the end of this program
    fcntl.flock(only, fcntl.LOCK_EX)  # of several ranks of a node one watches, and the next one after its end
    while True:
        time.sleep(float(plan.get("look") or LOOK))
        speed = mean or measured(folder) or USUAL_SPEED
        size = sum(files.size_of(os.path.join(scratch, str(e["source"]).strip("/")))[0] for e in plan["out"])
        if end_of(plan) - time.time() > FACTOR * size / speed + MARGIN:
            continue
        began = time.time()
        passes = []  # type: List[Pass]
        work(folder, "out", passes.append)
        moved = passes[0].bytes if passes else 0
        if moved > 1 << 20:
            mean = moved / max(time.time() - began, 0.001)


def hold_mounts(folder: str, passes: "List[Pass]") -> int:
    """Have object storage as folders until this program is ended; ``mounted.json`` says when they are there."""
    plan = read_plan(folder)
    if plan is None:
        return NO_PLAN
    with open(os.path.join(folder, "mount-lock"), "a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        current = Pass(folder, "in", plan)
        passes.append(current)
        remote = beside("remote")
        try:
            rclone = remote.Rclone(str(plan.get("rclone") or "rclone"), str(plan.get("home", "")), current.parallel)
            there = lambda: replace(folder, "mounted.json", {})  # noqa: E731
            done = beside("mount").hold(plan, rclone, there, current.fail, current.stop)
        except (remote.NoRemote, OSError) as error:
            current.fail("", str(error))
            done = False
        if not done:
            current.state = "failed"
            current.tell()
        return DONE if done else FAILED


def end_of(plan: "Dict[str, Any]") -> float:
    """Return when the time limit ends the job; never where it is not known."""
    try:
        return float(os.environ.get("SLURM_JOB_END_TIME") or plan.get("ends") or "inf")
    except (TypeError, ValueError):
        return float("inf")


def measured(folder: str) -> float:
    """Return the mean speed of the last pass, bytes in a second; 0 without any, or where it moved next to nothing."""
    try:
        with open(os.path.join(folder, "progress.json"), encoding="utf-8") as file:
            found = json.load(file)
        return float(found["mean"]) if found["bytes"] > 1 << 20 else 0.0
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0


def main(arguments: "List[str]") -> int:
    """Do what the command line says."""
    if len(arguments) != 2 or arguments[1] not in ("in", "out", "final", "late", "watch", "mount"):
        sys.stderr.write("carme-stage FOLDER in|out|final|late|watch|mount\n")
        return NO_PLAN
    folder, verb = os.path.abspath(arguments[0]), arguments[1]
    os.umask(0o022)  # for folders at the target; files have the mode of their source
    if verb == "watch":
        return watch(folder)
    passes = []  # type: List[Pass]

    def stop(*_: "Any") -> None:
        for each in passes:
            each.stopped = True

    signal.signal(signal.SIGTERM, stop)
    if verb == "mount":
        return hold_mounts(folder, passes)
    return work(folder, verb, passes.append)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
