"""Cells on many ranks, in a real kernel of a real session: displays, results, and what is left."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Iterator
from typing import Any

import pytest
from rig.hub import Hub, wait_for
from rig.training import Lab

from carme_hub.training.notebook.display import MEDIA_TYPE

HERE = "import time\nfrom carme_hub.training import here\n"
#: A cell that runs until it is ended.
LONG = HERE + "for n in range(6000):\n    here.step(n, total=6000); print('step', n, flush=True); time.sleep(0.1)\n"
#: A job of somebody else.
HOLDS = "#!/bin/sh\nexec sleep 600\n"
#: How many GPUs are free and whether three of them would be there now, as the hub sees it.
QUOTE = (
    "from carme_hub.training.session.companions import Hub\n"
    "quote = Hub.from_environ().quote(nodes=1, gpus=3)\nprint(quote.starts_now, quote.said)"
)
#: Run a script on three ranks in a terminal, and answer no.
IN_A_TERMINAL = """
import contextlib, json, os, pty
pid, master = pty.fork()  # its own terminal, as JupyterLab's
if not pid:
    os.execvp("carme-hub", ["carme-hub", "train", "-n", "4", "ask.py"])
said, answered = b"", False
with contextlib.suppress(OSError):  # the terminal ends with its program
    while more := os.read(master, 4096):
        said += more
        if not answered and (b"[y/N]" in said or b"Waiting for" in said):
            answered = os.write(master, b"n\\n" if b"[y/N]" in said else b"\\x03")
print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said.decode()]))
"""
#: Part of all names here: whose home it is may have runs already.
TAG = secrets.token_hex(2)


@pytest.fixture(scope="module")
def lab(site: Hub) -> Iterator[Lab]:
    site.login("alice")
    found = Lab(site, image="default", gpus=2, cpus=2, memory_gib=4, time_minutes=60)
    found.check("%load_ext carme_hub.training")
    yield found
    found.stop()


def processes(lab: Lab) -> list[str]:
    """Return the command lines of the ranks of this file's runs, on all nodes, which are this machine."""
    printed = lab.hub.cluster.run("ps", "-u", lab.user, "-o", "args=").stdout.splitlines()
    return [
        line
        for line in printed
        if TAG in line and ("carme_hub.training.rank.program" in line or "carme_hub.training.elastic.worker" in line)
    ]


def test_a_cell_shows_rank_0_in_front_the_others_folded_and_what_it_took(lab: Lab) -> None:
    code = "print(f'<i>rank {here.rank} of {here.size}</i>')\n"
    code += "for n in range(1, 11):\n    here.step(n, total=10, samples=32)\n    time.sleep(0.2)\n"
    printed = lab.run(f"%%distributed -n 4 --gpus-per-task 0 --name first-{TAG}\n" + HERE + code)
    assert not printed.errors, printed.error
    (bundle,) = printed.shown
    page = bundle["text/html"]
    assert f"Finished</span> first-{TAG}: 4 ranks on node" in page
    assert "Step 10 of 10" in page
    assert page.index("&lt;i&gt;rank 0 of 4&lt;/i&gt;") < page.index("<details>") < page.index("&lt;i&gt;rank 1 of 4")
    assert page.count("<details>") == 3
    assert "<i>rank" not in page
    assert "<i>rank 0 of 4</i>" in bundle["text/plain"]
    assert 3 <= printed.updates <= 60  # in place, at most four times a second
    assert lab.wait_no_step() < 5


def test_variables_are_pushed_and_pulled(lab: Lab) -> None:
    lab.check("cfg = {'lr': 0.5}\nimport threading; lock = threading.Lock()\nbig = bytes(300 << 20)")
    code = "history = [cfg['lr'] * here.size] * 3 if here.rank == 0 else None\n"
    lab.check("%%distributed -n 2 --gpus-per-task 0 --push cfg --pull history\n" + HERE + code)
    assert lab.check("print(history)") == "[1.0, 1.0, 1.0]\n"
    printed = lab.run("%%distributed -n 2 --push cfg,lock\npass")
    assert "CannotRun: The variable lock cannot be pickled" in printed.error
    printed = lab.run("%%distributed -n 2 --push big\npass")
    assert "CannotRun: The variable big has 300.0 MiB; the limit is 256.0 MiB" in printed.error
    assert "Traceback" not in printed.error
    lab.check("del big")


def test_variables_of_the_kernel_go_along_and_a_rank_has_what_torchrun_gives(lab: Lab) -> None:
    lab.check("%env NCCL_DEBUG=INFO\n%env PYTHONHASHSEED=7\nimport os; os.environ['LD_BIND_NOW'] = '1'")
    code = (
        "import json, os\n"
        "names = ('NCCL_DEBUG', 'PYTHONHASHSEED', 'LD_BIND_NOW', 'OWN', 'GROUP_RANK', 'TORCHELASTIC_RUN_ID')\n"
        "found = [{name: os.environ.get(name) for name in names}, os.getpid(), here.time_left(),\n"
        "         [name for name in os.environ if name.startswith('SLURM') or 'TOKEN' in name]]\n"
        "print(json.dumps(found))\n"
    )
    printed = lab.run(f"%%distributed -n 3 --gpus-per-task 0 --name env-{TAG} --env OWN=1\n" + HERE + code)
    assert not printed.errors, printed.error
    text = printed.shown[0]["text/plain"]
    assert "Not forwarded to the ranks: LD_BIND_NOW" in text
    found = [
        json.loads(json.loads(lab.check(f"import json; print(json.dumps(distributed.log('env-{TAG}', {rank})))")))
        for rank in range(3)
    ]
    own = {"NCCL_DEBUG": "INFO", "PYTHONHASHSEED": "7", "LD_BIND_NOW": None, "OWN": "1", "GROUP_RANK": "0"}
    assert [each[0] for each in found] == [{**own, "TORCHELASTIC_RUN_ID": f"env-{TAG}"}] * 3
    assert len({each[1] for each in found}) == 3, "ranks have the same pid"
    assert all(0 < each[2] < 3600 for each in found), found
    assert [each[3] for each in found] == [[]] * 3
    lab.check("for name in ('NCCL_DEBUG', 'PYTHONHASHSEED', 'LD_BIND_NOW'): del os.environ[name]")


#: Writes a wheel of one module: a package that no index has.
WHEEL = """
import zipfile
info = "carme_try-1.0.dist-info"
files = {
    "carme_try.py": "WHERE = __file__\\n",
    f"{info}/WHEEL": "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    f"{info}/METADATA": "Metadata-Version: 2.1\\nName: carme_try\\nVersion: 1.0\\n",
}
with zipfile.ZipFile("carme_try-1.0-py3-none-any.whl", "w") as file:
    for path, text in files.items():
        file.writestr(path, text)
    file.writestr(f"{info}/RECORD", "".join(f"{path},,\\n" for path in (*files, f"{info}/RECORD")))
"""


@pytest.mark.parametrize("where", ["--gpus-per-task 0", "--nodes 2 --gpus-per-task 1"])
def test_what_pip_installs_in_the_session_reaches_its_ranks_also_in_a_companion(lab: Lab, where: str) -> None:
    lab.check(WHEEL)
    printed = lab.run("%pip install --quiet --no-index carme_try-1.0-py3-none-any.whl")
    assert not printed.errors, printed.error
    assert "/packages/lib/" in lab.check("import carme_try; print(carme_try.WHERE)")
    printed = lab.run(f"%%distributed -n 2 {where} --name pip-{TAG}\nimport carme_try; print(carme_try.WHERE)")
    assert not printed.errors, printed.error
    assert "/packages/lib/" in printed.shown[0]["text/plain"]
    # --user is for this session too, and a name that nobody has is explained.
    printed = lab.run("%pip install --user --force-reinstall --no-index carme_try-1.0-py3-none-any.whl")
    assert "--user: the packages go to this session" in printed.out, printed
    printed = lab.run("%%distributed -n 1 --gpus-per-task 0\nimport carme_nowhere")
    assert "%pip install carme_nowhere" in printed.error


def test_a_run_beyond_the_session_goes_to_one_node_with_cpus_and_memory_in_proportion(lab: Lab) -> None:
    line = f"%%distributed -n 3 --only-companion --name one-{TAG}\n"
    printed = lab.run(line + HERE + "print(here.node)\n", timeout=120)
    assert not printed.errors, printed.error
    assert "1 node with 3 virtual GPUs more is requested" in printed.out
    found = lab.check(f"print(distributed.Run.load('one-{TAG}').state()['companions'][0])").strip()
    argv = ("sacct", "-nXP", f"--name=carme-{found}", "-o", "NNodes,ReqTRES")
    wait_for(lambda: lab.hub.cluster.run(*argv).stdout.strip(), 30, "the companion in the accounting")
    job = lab.hub.cluster.run(*argv).stdout.strip()
    nodes, _, resources = job.partition("|")
    assert (nodes, {"cpu=3", "mem=6G"} - set(resources.split(","))) == ("1", set()), job
    assert "gres/gpu:a100=3" in resources
    # By default two ranks stay in the session, which has two GPUs.
    printed = lab.run(f"%%distributed -n 3 --name part-{TAG}\n" + HERE + "print(here.node)\n", timeout=120)
    assert not printed.errors, printed.error
    assert "This session has room for 2 of 3 ranks: 1 node with 1 virtual GPU more is requested." in printed.out
    assert re.search(rf"part-{TAG}: 3 ranks on node.*, 3 virtual GPUs, torchrun", printed.text("text/html"))
    printed = lab.run("%%distributed -n 6 --nodes 1\npass")
    assert "you asked for 6. Use --nodes 2." in printed.error


def test_in_a_terminal_a_run_that_would_wait_for_gpus_of_others_asks_first(lab: Lab) -> None:
    # Only the session: what an earlier test holds would be a reason to wait that ends by itself.
    wait_for(lambda: lab.check(QUOTE).startswith("True 6 of 8 "), 60, "the hub to see the session alone")
    (row,) = lab.hub.cluster.squeue("-u", lab.user, "-t", "R")
    beside = lab.hub.cluster.sbatch("--mem=50", "--gres=gpu:a100:2", "-w", row["nodes"], user="bob", script=HOLDS)
    other = "node2" if row["nodes"] == "node1" else "node1"
    there = lab.hub.cluster.sbatch("--mem=50", "--gres=gpu:a100:3", "-w", other, user="bob", script=HOLDS)
    try:
        for job in (beside, there):
            lab.hub.cluster.wait_job(job, "RUNNING")
        lab.check("open('ask.py', 'w').write('print(1)')")
        wait_for(lambda: lab.check(QUOTE).startswith("False 1 of 8 "), 60, "the hub to see these jobs")
        # Of this session alone: whose home it is may start runs elsewhere.
        count = "mine = os.environ['CARME_SESSION']\n"
        count += "print(sum(run.state()['session'] == mine for run in distributed.runs()))"
        before = lab.check(f"import os\n{count}")
        status, said = json.loads(lab.check(IN_A_TERMINAL, 60).splitlines()[-1])
        assert (
            "It may wait for GPUs that others use, or wait for. With -n 3 it would start now. Wait for them? [y/N]"
            in said
        ), said
        assert "Nothing was requested." in said, said
        assert status == 2
        assert lab.check(count) == before
    finally:
        lab.hub.cluster.run("scancel", str(beside), str(there))
        lab.check("import os; os.unlink('ask.py')")
        wait_for(lambda: lab.check(QUOTE).startswith("True "), 60, "the hub to see that these jobs are gone")


def test_one_failing_rank_ends_the_run_at_once_with_its_error_first(lab: Lab) -> None:
    began = time.monotonic()
    code = "time.sleep(0.5)\nif here.rank == 1:\n    raise ValueError('no such batch')\ntime.sleep(60)\n"
    printed = lab.run(f"%%distributed -n 2 --gpus-per-task 0 --name bad-{TAG}\n" + HERE + code)
    assert time.monotonic() - began < 20
    (error,) = printed.errors
    assert re.search(rf"ValueError +rank 1 on node\d+ of bad-{TAG}", error)
    assert "line 5, in <module>" in error
    assert error.index("raise ValueError") < error.index("The output of the ranks is in")
    assert "distributed.py" not in error  # nothing of ours
    assert re.search(r"Rank 1 on node\d+: ValueError: no such batch", printed.text("text/html"))
    assert lab.wait_no_step() < 5


def test_an_interrupt_stops_all_ranks_within_5_seconds_and_leaves_nothing(lab: Lab) -> None:
    printed, thread = lab.begin(f"%%distributed -n 4 --gpus-per-task 0 --name stopped-{TAG}\n" + LONG)
    wait_for(lambda: "step 5" in printed.text(), 60, "the ranks to go on")
    assert len(processes(lab)) >= 4
    began = time.monotonic()
    lab.interrupt()
    thread.join(20)
    assert time.monotonic() - began < 5
    assert f"KeyboardInterrupt: stopped-{TAG} was stopped" in printed.error
    assert f"Stopped</span> stopped-{TAG}" in printed.text("text/html")
    assert lab.wait_no_step() < 1
    assert processes(lab) == []


def test_functions_return_what_each_rank_returned(lab: Lab) -> None:
    lab.check("from carme_hub.training import distributed\noffset = 40")
    code = "def train(step):\n    from carme_hub.training import here\n    return offset + step * here.rank\n"
    lab.check(code + "results = distributed.run(train, {'step': 2}, n=3, gpus_per_task=0)")
    assert lab.check("print(results)") == "[40, 42, 44]\n"


def test_a_script_runs_on_ranks_by_a_command(lab: Lab) -> None:
    script = "import sys\nfrom carme_hub.training import here\nprint(here.rank, here.size, sys.argv[1:])\n"
    lab.check(f"print(open('train.py', 'w').write({script!r}))")
    train = ("carme-hub", "train", "--gpus-per-task", "0", "-n")
    status, printed = lab.command(*train, "2", "--all", "train.py", "--lr", "1")
    assert status == 0, printed
    assert {"[0] 0 2 ['--lr', '1']", "[1] 1 2 ['--lr', '1']"} <= set(printed.splitlines())
    status, printed = lab.command(*train, "1", "none.py")
    assert (status, printed) == (2, "carme-hub: There is no script none.py.\n")
    status, printed = lab.command("carme-hub", "runs")
    assert status == 0
    assert re.search(rf"^stopped-{TAG} +Stopped +4 +node\d", printed, flags=re.MULTILINE)


def test_a_run_that_does_not_fit_shows_its_price_and_start_and_runs_on_two_nodes(lab: Lab) -> None:
    line = f"%%distributed -n 2 --nodes 2 --time 5m --name wide-{TAG}\n"
    printed = lab.run(line + HERE + "time.sleep(1)\nprint(here.node)\n", timeout=120)
    assert not printed.errors, printed.error
    # The session's node is one of the two.
    assert "This session has room for 1 of 2 ranks: 1 node with 1 virtual GPU more is requested." in printed.out
    assert "tarts now" in printed.out
    page = printed.text("text/html")
    assert re.search(rf"wide-{TAG}: 2 ranks on (node\d+) and (?!\1)node\d+, 2 virtual GPUs, torchrun", page)
    assert re.search(r"\d:\d\d in all, \d:\d\d of virtual GPU time", page)


def test_the_batch_script_of_a_dry_run_does_the_same_outside_of_the_hub(lab: Lab) -> None:
    code = "print('rank', here.rank, 'of', here.size, 'on', here.node, cfg)\n"
    lab.check("cfg = {'it': \"isn't\"}")
    line = f"%%distributed -n 2 --gpus-per-task 1 --time 5m --name kept-{TAG} --push cfg --dry-run\n"
    printed = lab.run(line + HERE + code)
    assert not printed.errors, printed.error
    assert printed.shown == []
    assert "#SBATCH --gres=gpu:a100:2\n" in printed.out
    site = lab.check("import carme_hub; print(carme_hub.__path__[0].removesuffix('/carme_hub'))").strip()
    mounts = [line.split() for line in lab.check("print(open('/proc/self/mountinfo').read())").splitlines() if line]
    image = next(each[3] for each in mounts if each[4] == "/opt")
    outside = f"--export=ALL,CARME_PYTHON=/usr/bin/python3,PYTHONPATH={image}{site.removeprefix('/opt')}"
    cluster = lab.hub.cluster
    job = cluster.sbatch(outside, f"--output=kept-{TAG}.log", user=lab.user, script=printed.out)
    wait_for(lambda: cluster.job_state(job) not in ("PENDING", "RUNNING", "COMPLETING"), 90, "the job's end")
    log = cluster.run("/usr/bin/cat", f"kept-{TAG}.log", user=lab.user, check=False).stdout
    assert cluster.job_state(job) == "COMPLETED", log
    assert re.search(r"^rank 0 of 2 on node\d+ \{'it': \"isn't\"\}$", log, flags=re.MULTILINE), log


def test_a_detached_run_outlives_its_kernel_and_is_found_again(lab: Lab) -> None:
    code, long, short = "%%distributed -n 2 --gpus-per-task 0 --detach --name NAME\n" + LONG, f"a-{TAG}", f"b-{TAG}"
    printed = lab.run(code.replace("NAME", long), timeout=20)
    assert f"distributed.watch('{long}')" in printed.out
    other, thread = lab.begin(code.replace("--detach ", "").replace("NAME", short))
    wait_for(lambda: "step 1" in other.text(), 60, "the other run")
    lab.end_kernel()
    del thread  # its connection is gone
    lab.check("from carme_hub.training import distributed\nimport json")
    states = "print(json.dumps({run.id: run.state()['state'] for run in distributed.runs()}))"
    wait_for(lambda: json.loads(lab.check(states))[short] == "interrupted", 10, "the run of the dead kernel to end")
    assert json.loads(lab.check(states))[long] == "running"
    shown = lab.run("distributed.runs(live=True)").text("text/html")
    assert f"{long}</th><td>Running</td><td>2</td>" in shown
    assert short not in shown
    looking, thread = lab.begin(f"distributed.watch({long!r})")
    wait_for(lambda: "step" in looking.text(), 30, "the run to be shown")
    lab.interrupt()  # as Jupyter does also before it restarts a kernel
    thread.join(20)
    assert f"KeyboardInterrupt: You stopped following {long}; the run continues." in looking.error
    assert "Traceback" not in looking.error
    assert json.loads(lab.check(states))[long] == "running"
    assert lab.check(f"print(distributed.stop({long!r})['state'])") == "interrupted\n"
    assert lab.wait_no_step() < 5
    assert processes(lab) == []


def test_a_page_shows_a_run_without_its_kernel(site: Hub, lab: Lab) -> None:
    code = f"%%distributed -n 2 --name page-{TAG}\n" + HERE + "print('rank', here.rank, flush=True)\ntime.sleep(8)\n"
    printed, thread = lab.begin(code)
    wait_for(lambda: printed.shown and "running" in printed.text(), 60, "the display")

    def ask(method: str, body: object = None) -> Any:
        return site.server_api(method, "alice", "", f"/carme/runs/page-{TAG}", body).body

    live = ask("GET")
    assert not live[MEDIA_TYPE]["ended"]
    assert "time.sleep" in ask("POST", {"ask": "stacks"})["message"]
    thread.join(60)
    assert not printed.errors, printed.error
    (bundle,) = printed.shown
    assert ask("GET") == bundle  # what the kernel has sent last
    assert bundle[MEDIA_TYPE]["log"] == "<pre>rank 0</pre>"
    assert "rank 1</pre></div></details>" in bundle["text/html"]


def test_the_hub_receives_the_activity_of_a_run(site: Hub, lab: Lab) -> None:
    def seen() -> str:
        return str(site.api("GET", "/users/alice").body["servers"][""]["last_activity"])

    before = seen()
    lab.check("from carme_hub.training.session.activity import Activity; Activity().say()")
    wait_for(lambda: seen() > before, 5, "the hub to know of activity; the server itself says it every five minutes")
