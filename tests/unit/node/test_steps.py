"""carme-steps and its client: who is answered, what becomes of a step, and that nothing said to it harms it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from carme_hub.spawners.job_script import SRUN, STEPS
from carme_hub.training.session.step_broker import Broker, NoBroker, NotReady, RunningStep, Step

#: As much of Slurm as a step needs: its tasks are started on this machine, and scancel signals them.
SRUN_THAT_STAYS_HERE = """#!/usr/bin/python3
import json, os, signal, subprocess, sys
here = os.path.dirname(sys.argv[0])
options = dict(word.partition("=")[::2] for word in sys.argv[1:] if word.startswith("--"))
command = sys.argv[sys.argv.index("--") + 1:]
json.dump([dict(os.environ), sys.argv], open(here + "/srun.json", "w"))
if command == ["refuse"]:
    sys.exit(print("srun: defined options\\nsrun: error: Unable to create step for job 7: Busy", file=sys.stderr) or 1)
print("srun: launching StepId=7.4 on host n1, 1 tasks: 0", file=sys.stderr, flush=True)
err = os.open(options["--error"], os.O_WRONLY | os.O_APPEND)
tasks, came = [], []
def hand_on(number, _):
    came.append(number)
    for task in tasks: task.send_signal(signal.SIGKILL if number == signal.SIGTERM else number)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1): signal.signal(number, hand_on)
for _ in range(int(options["--ntasks"])): tasks.append(subprocess.Popen(command, stderr=err))
if signal.SIGTERM in came: hand_on(signal.SIGTERM, None)  # before all of them were there
with open(here + "/tasks.new", "w") as file: file.write(" ".join(str(task.pid) for task in tasks))
os.rename(here + "/tasks.new", here + "/tasks")
status = max(task.wait() % 256 for task in tasks)
print("srun: error: n1: task 0: Exited with exit code 3" if status == 3 else "srun: -----", file=sys.stderr)
sys.exit(status)
"""
SCANCEL = """#!/usr/bin/python3
import os, sys
here = os.path.dirname(sys.argv[0])
open(here + "/cancelled", "a").write(" ".join(sys.argv[1:]) + "\\n")
for pid in open(here + "/tasks").read().split():
    os.kill(int(pid), 15 if "--signal=TERM" in sys.argv else 9)
"""
SCONTROL = """#!/bin/sh
case "$*" in
*"show job"*) echo 'JobId=7 JobState=RUNNING TimeLimit=UNLIMITED NodeList=n1 Nodes=n1 CPU_IDs=0-3 Mem=9 GRES=gpu:a:2' ;;
*hostnames*) echo n1 ;;
*"show node"*) echo 'NodeName=n1 NodeAddr=127.0.0.1 NodeHostName=x' ;;
esac
"""
SQUEUE = "#!/bin/sh\necho '8 PENDING'\n"


class BrokerHere:
    """The real carme-steps in front of a forged Slurm."""

    def __init__(self, folder: Path, commands: Path) -> None:
        self.folder, self.commands = folder, commands
        folder.mkdir(parents=True)
        texts = {"carme-steps": STEPS, "carme-srun": SRUN, "data.json": json.dumps({"rank": {"plan": {}}})}
        for name, text in texts.items():
            (folder / name).write_text(text)
        programs = {"srun": SRUN_THAT_STAYS_HERE, "scancel": SCANCEL, "scontrol": SCONTROL, "squeue": SQUEUE}
        for name, text in programs.items():
            (commands / name).write_text(text)
            (commands / name).chmod(0o755)
        path = f"{commands}:/usr/bin:/bin"
        own = {"PATH": path, "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", "SLURM_NTASKS": "9", "HUB_SECRET": "x"}
        argv = ["/usr/bin/python3", "-IS", folder / "carme-steps", folder]
        with socket.socket(socket.AF_UNIX) as line:  # the batch script's part
            opened = os.open(folder, os.O_RDONLY)
            line.bind(f"/proc/self/fd/{opened}/steps.sock")
            os.close(opened)
            line.listen(128)
            line.setblocking(False)
            self.process = subprocess.Popen([*argv, str(line.fileno())], env=own, pass_fds=[line.fileno()])
        self.broker = Broker(str(folder))
        self.running: list[RunningStep] = []

    def start(self, code: str, ranks: int = 1, **more: Any) -> tuple[RunningStep, list[str]]:
        """Start ranks that run Python; return them and the list that their lines come to."""
        (self.commands / "tasks").unlink(missing_ok=True)
        reading, writing = os.pipe()
        lines: list[str] = []
        argv = more.pop("argv", (sys.executable, "-c", code))
        try:
            step = self.broker.start(Step("test", ranks, argv, **more), writing, writing)
        except NoBroker:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        self.running.append(step)

        def read() -> None:
            with os.fdopen(reading) as file:
                lines.extend(line.rstrip("\n") for line in file)

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        step.until_read = thread.join  # type: ignore[attr-defined]
        return step, lines

    def tasks(self) -> list[int]:
        """Return the ranks that live."""
        pids = (self.commands / "tasks").read_text().split()
        return [int(pid) for pid in pids if Path(f"/proc/{pid}").exists()]

    def stay(self, ranks: int = 1, *, stubborn: bool = False) -> RunningStep:
        """Start ranks that sleep, and return when all do."""
        deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN); " if stubborn else ""
        code = f"import signal, time; {deaf}print('up', flush=True); time.sleep(60)"
        step, lines = self.start(code, ranks)
        wait_until(lambda: len(lines) == ranks)
        wait_until((self.commands / "tasks").exists)  # srun and scancel know them now
        return step

    def end(self) -> None:
        for step in self.running:
            step.close()
        self.process.terminate()
        self.process.wait(10)

    def line(self) -> socket.socket:
        """Return a line to the broker that nothing was said on."""
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        line.settimeout(20)
        folder = os.open(self.folder, os.O_RDONLY)
        line.connect(f"/proc/self/fd/{folder}/steps.sock")
        os.close(folder)
        return line


def wait_until(what: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[BrokerHere]:
    (tmp_path / "commands").mkdir()
    found = BrokerHere(tmp_path / ("a long home " * 20) / "s", tmp_path / "commands")
    yield found
    found.end()


def test_it_says_what_the_job_has(here: BrokerHere) -> None:
    has = here.broker.allocation()
    assert (has.job, has.nodes, has.cpus, has.gpus, has.gpu_type) == (7, ("n1",), 4, 2, "a")
    assert (has.ends, has.address) == (0.0, "127.0.0.1")


def test_a_step_says_its_number_its_lines_its_status_and_why(here: BrokerHere) -> None:
    step, lines = here.start("print('out'); import sys; print('err', file=sys.stderr); sys.exit(3)", ranks=2)
    assert step.wait(20) == 3
    step.until_read()  # type: ignore[attr-defined]
    assert step.id == "7.4"
    assert step.messages == ("srun: error: n1: task 0: Exited with exit code 3",)
    assert sorted(lines) == ["err", "err", "out", "out"]
    assert step.wait(0) == 3  # and again
    assert list(here.folder.glob("step-*")) == []


def test_slurms_reason_for_no_step_is_said(here: BrokerHere) -> None:
    step, _ = here.start("", argv=("refuse",))
    assert step.wait(20) == 1
    assert step.messages == ("srun: error: Unable to create step for job 7: Busy",)


def test_waiting_ends_when_the_time_is_over(here: BrokerHere) -> None:
    step, _ = here.start("import time; time.sleep(60)")
    began = time.monotonic()
    assert step.wait(0.3) is None
    assert 0.25 < time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("name", "prints"), [("INT", ["interrupted"]), ("USR1", ["warned"]), ("TERM", ["asked to end"])]
)
def test_signals_reach_the_ranks(here: BrokerHere, name: str, prints: list[str]) -> None:
    code = (
        "import os, signal, time\n"
        "told = []\n"
        "def say(what): told.append(what); print(what, flush=True)\n"
        "signal.signal(signal.SIGUSR1, lambda *_: say('warned'))\n"
        "signal.signal(signal.SIGTERM, lambda *_: say('asked to end'))\n"
        "end = time.monotonic() + 30\n"
        "try:\n"
        "    os.write(1, b'up\\n')\n"
        "    while not told and time.monotonic() < end: time.sleep(0.01)\n"
        "    time.sleep(0.3)  # for one that comes twice\n"
        "except KeyboardInterrupt: say('interrupted')"
    )
    step, lines = here.start(code)
    wait_until(lambda: lines)
    wait_until((here.commands / "tasks").exists)
    step.signal(name)
    assert step.wait(20) == 0
    step.until_read()  # type: ignore[attr-defined]
    assert lines == ["up", *prints]
    with pytest.raises(ValueError, match="'STOP' is none of"):
        step.signal("STOP")


@pytest.mark.parametrize("stubborn", [False, True])
@pytest.mark.parametrize("how", ["close", "KILL"])
def test_ranks_end_within_five_seconds_of_the_wish(here: BrokerHere, how: str, stubborn: bool) -> None:
    step = here.stay(2, stubborn=stubborn)
    assert len(list(here.folder.glob("step-*"))) == 1  # the mark by which ranks know that they shall live
    began = time.monotonic()
    if how == "close":
        step.close()
    else:
        step.signal("KILL")
        assert step.wait(10) in (137, 143, 241, 247)  # as this srun says it
    while here.tasks():
        assert time.monotonic() - began < 5
        time.sleep(0.05)
    assert (here.commands / "cancelled").read_text().splitlines()[0] == "--signal=TERM 7.4"
    assert (time.monotonic() - began > 2.5) == stubborn


def test_the_end_of_the_broker_is_the_end_of_its_steps(here: BrokerHere) -> None:
    step = here.stay(2)
    here.process.terminate()
    assert here.process.wait(6) == 0
    assert here.tasks() == []
    assert not (here.folder / "steps.sock").exists()
    assert step.wait(5) not in (None, 0)


def test_a_broker_that_is_killed_takes_its_steps_along_and_that_is_said(here: BrokerHere) -> None:
    step = here.stay(2)
    here.process.kill()
    assert step.wait(6) not in (None, 0)
    assert here.tasks() == []
    with pytest.raises(NoBroker, match=r"Connection refused.*stop your server and start it again"):
        here.broker.allocation()


def test_srun_gets_no_environment_of_the_job_and_the_ranks_slot_only(here: BrokerHere) -> None:
    step, _ = here.start("pass", 1, slot="w7", gpus_per_node=1)
    assert step.wait(20) == 0
    environ, argv = json.loads((here.commands / "srun.json").read_text())
    environ.pop("LC_CTYPE", None)  # Python sets it by itself
    assert sorted(environ) == ["CARME_GPUS", "CARME_SLOT", "LANG", "PATH"]
    assert (environ["CARME_GPUS"], environ["CARME_SLOT"]) == ("0", "w7")
    command = argv[argv.index("/usr/bin/python3") :]
    assert command[:4] == ["/usr/bin/python3", "-IS", f"{here.folder}/carme-rank", str(here.folder)]
    assert command[5:] == ["--", sys.executable, "-c", "pass"]
    assert len(command[4]) == 12


# -- what is refused --------------------------------------------------------------------------------------------------


def test_a_companion_that_waits_is_not_ready(here: BrokerHere) -> None:
    companion = "0f9a3c52-5f0b-4c1e-9d8e-0a1b2c3d4e5f"
    with pytest.raises(NotReady, match="is pending, and not running"):
        here.broker.allocation(companion)
    with pytest.raises(NotReady, match="is pending, and not running"):
        here.start("pass", companion=companion)


def test_a_companion_is_ready_when_all_that_its_ranks_need_is_there(here: BrokerHere) -> None:
    """Slurm calls a job running before its script, which writes that down, has begun."""
    companion = "0f9a3c52-5f0b-4c1e-9d8e-0a1b2c3d4e5f"
    (here.commands / "squeue").write_text("#!/bin/sh\necho '8 RUNNING'\n")
    folder = here.folder.parent / companion
    folder.mkdir()
    for name in ("data.json", "carme-rank", "carme-launch", "carme-supervise", "carme-memory"):
        with pytest.raises(NotReady, match=f"The companion {companion} begins, or ends: its plan is not there"):
            here.broker.allocation(companion)
        (folder / name).write_text("")
    assert here.broker.allocation(companion).nodes == ("n1",)


def test_a_container_that_cannot_run_ranks_says_so(here: BrokerHere) -> None:
    (here.folder / "data.json").write_text(json.dumps({"rank": {"refused": "Pyxis cannot."}}))
    with pytest.raises(NoBroker, match=r"^Pyxis cannot\.$"):
        here.start("pass")


def test_more_gpus_than_there_are_are_refused(here: BrokerHere) -> None:
    with pytest.raises(NoBroker, match=r"The job has 2 GPUs on each node, and not 3\."):
        here.start("pass", gpus_per_node=3)


def test_without_a_session_it_is_said_where_to_run_this(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CARME_SESSION_FOLDER", raising=False)
    with pytest.raises(NoBroker, match=r"CARME_SESSION_FOLDER is not set\. Run this in a notebook"):
        Broker().allocation()
    monkeypatch.setenv("CARME_SESSION_FOLDER", str(tmp_path))
    with pytest.raises(NoBroker, match=r"No such file or directory.*stop your server and start it again"):
        Broker().allocation()


@pytest.mark.parametrize(
    ("answer", "read"),
    [(b"", "closed the connection"), (b'{"error": "bad", "message": "It is too long."}\n', "It is too long")],
    ids=["silent", "with a reason"],
)
def test_a_broker_that_closes_before_it_has_read_the_request_is_told_by_its_answer(
    tmp_path: Path, answer: bytes, read: str
) -> None:
    with socket.socket(socket.AF_UNIX) as broker_that_reads_nothing:
        broker_that_reads_nothing.bind(str(tmp_path / "steps.sock"))
        broker_that_reads_nothing.listen()

        def refuse() -> None:
            with broker_that_reads_nothing.accept()[0] as connection:
                connection.sendall(answer)

        refusing = threading.Thread(target=refuse)
        refusing.start()
        # More than a socket holds, so that the client is still sending when the broker closes.
        step = Step("run", 1, ("x" * 4_000_000,))
        with pytest.raises(NoBroker, match=read):
            Broker(str(tmp_path)).start(step, 1, 2)
        refusing.join(10)


@pytest.mark.parametrize(
    "said",
    [
        b"\n",
        b"[]\n",
        b"null\n",
        b'{"op": "shell", "argv": ["id"]}\n',
        b'{"op": "step"}\n',
        b'{"op": "step", "run": "x", "ranks": 1}\n',  # no descriptors came
        b'{"op": "allocation", "companion": {"a": 1}}\n',
        b"\xff\xfe\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"x" * 1_100_000,
    ],
    ids=repr,
)
def test_what_is_no_request_is_answered_with_an_error_and_harms_nothing(here: BrokerHere, said: bytes) -> None:
    with here.line() as line:
        try:
            line.sendall(said)
            answer = line.makefile("rb").readline()
        except (BrokenPipeError, ConnectionResetError):  # it stopped reading
            answer = b'{"error": "bad"}'
    assert json.loads(answer)["error"] == "bad"
    assert here.broker.allocation().job == 7


def test_a_step_without_exactly_two_descriptors_is_refused_and_none_is_kept(here: BrokerHere) -> None:
    asked = json.dumps({"op": "step", "run": "x"}).encode() + b"\n"
    for count in (1, 3):
        with here.line() as line:
            socket.send_fds(line, [asked], [1] * count)
            assert json.loads(line.makefile("rb").readline())["error"] == "bad"


def test_who_only_connects_does_not_keep_others_waiting(here: BrokerHere) -> None:
    lines = [here.line() for _ in range(5)]
    began = time.monotonic()
    assert here.broker.allocation().job == 7
    assert time.monotonic() - began < 5
    for line in lines:
        line.close()


def test_another_user_gets_no_word(here: BrokerHere) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    code = (
        "import os, socket, sys\n"
        "os.chdir(sys.argv[1]); line = socket.socket(socket.AF_UNIX); line.settimeout(10)\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "line.connect('steps.sock'); line.sendall(b'{\"op\": \"allocation\"}\\n'); print(line.recv(100))"
    )
    here.folder.chmod(0o755)
    (here.folder / "steps.sock").chmod(0o666)  # whatever lets them in
    words = [sys.executable, "-c", code, str(here.folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=30)
    assert done.stdout == "b''\n" or "ConnectionResetError" in done.stderr or "BrokenPipeError" in done.stderr
    assert here.process.poll() is None
    os.kill(here.process.pid, signal.SIGUSR1)  # as Slurm may send to all processes of a job
    assert here.broker.allocation().job == 7
