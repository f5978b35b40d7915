"""Scripts that know nothing of Carme Hub run as they are, with ``carme-hub train``, on one node and on two.

Those in ``scripts`` have the shape of their library's tutorial; accelerate's comes with accelerate itself.
"""

from __future__ import annotations

import base64
import json
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from rig.hub import Hub, wait_for
from rig.nightly import NIGHTLY
from rig.training import Lab

SCRIPTS = Path(__file__).with_name("scripts")
#: Ranks and nodes.
PLACES = [(1, 1), (2, 1), (4, 1), (2, 2), (4, 2)]
#: Name, script, its arguments, and what its rank 0 prints at the end.
ROWS = [
    ("PyTorch DDP", "ddp.py", "foreign/snapshot.pt", "world {ranks} local {each} same weights"),
    ("PyTorch FSDP2", "fsdp.py", "", "world {ranks} whole state of"),
    ("Lightning", "lightning_ddp.py", "{nodes} {each} foreign/lightning", "world {ranks} TorchElasticEnvironment"),
    ("transformers", "transformers_trainer.py", "foreign/trainer", "world {ranks} parallel"),
]
#: The last step and the number of steps that one rank reports by its library's callback, and the name of a scalar.
REPORTS = {"lightning_ddp.py": (64, 64, "Result: loss")}


@pytest.fixture(scope="module")
def lab(site: Hub) -> Iterator[Lab]:
    """A session with one GPU; runs that need more get a companion."""
    site.login("tina")
    lab = Lab(site, "tina", image="training", gpus=1, cpus=2, memory_gib=8, time_minutes=60)
    lab.check("import os; os.makedirs('foreign', exist_ok=True)")
    for script in SCRIPTS.iterdir():
        lab.check(f"open('foreign/{script.name}', 'w').write({script.read_text()!r})")
    yield lab
    lab.check("import shutil; shutil.rmtree('foreign')")
    lab.stop()


#: What the image lacks of DeepSpeed and its requirements.
DEEPSPEED = ("deepspeed", "hjson", "ninja", "py-cpuinfo", "einops", "msgpack")


@pytest.fixture(scope="module")
def deepspeed(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Install DeepSpeed in the session, as its user would."""
    wheels = tmp_path_factory.mktemp("wheels")
    subprocess.run(["/usr/bin/python3", "-m", "pip", "wheel", "-q", "--no-deps", "-w", wheels, *DEEPSPEED], check=True)
    for wheel in wheels.iterdir():
        text = base64.b64encode(wheel.read_bytes()).decode()
        lab.check(f"import base64; open('foreign/{wheel.name}', 'wb').write(base64.b64decode({text!r}))")
    printed = lab.run("%pip install --quiet --no-index --find-links foreign deepspeed", timeout=120)
    assert not printed.errors, printed.error
    assert "deepspeed" in lab.command("pip", "list")[1]


def train(lab: Lab, ranks: int, nodes: int, *argv: str, gpus: int = 1, timeout: float = 280) -> str:
    """Run a script to its end, and return what was printed."""
    words = ("carme-hub", "train", "-n", str(ranks), "--nodes", str(nodes), "--gpus-per-task", str(gpus), "--all")
    status, out = lab.command(*words, *argv, timeout=timeout)
    assert status == 0, out
    return out


@pytest.mark.parametrize(
    ("script", "arguments", "says", "ranks", "nodes"),
    [
        pytest.param(*row, *place, id=f"{name}-{place[0]}-{place[1]}", marks=pytest.mark.nightly)
        for name, *row in ROWS
        for place in PLACES
    ],
)
def test_a_script_of_its_librarys_tutorial_runs_as_it_is(
    lab: Lab, script: str, arguments: str, says: str, ranks: int, nodes: int
) -> None:
    facts = {"ranks": ranks, "nodes": nodes, "each": ranks // nodes}
    name = f"{script.removesuffix('.py')}-{ranks}-{nodes}-{lab.hub.demo.ports['public']}"
    out = train(lab, ranks, nodes, "--name", name, f"foreign/{script}", *arguments.format(**facts).split())
    assert says.format(**facts) in out, out
    if script in REPORTS:  # by its library, since it knows nothing of here.step
        step, total, scalar = REPORTS[script]
        # By name: sessions of other sandboxes have the same home.
        shown = lab.command("carme-hub", "runs", "show", name, "--json")[1]
        state = json.loads(shown)["state"]
        assert {(each["step"], each["total"]) for each in state["ranks"]} == {(step // ranks, total // ranks)}
        assert scalar in lab.command("carme-hub", "runs", "show", state["id"])[1]


@pytest.mark.nightly
@pytest.mark.parametrize(("ranks", "nodes"), PLACES)
@pytest.mark.usefixtures("deepspeed")
def test_deepspeed_trains_in_all_ranks(lab: Lab, ranks: int, nodes: int) -> None:
    out = train(lab, ranks, nodes, "--env", "DS_ACCELERATOR=cpu", "foreign/deepspeed_zero.py")
    assert f"world {ranks} steps {64 // 4 // ranks} same weights" in out, out


@pytest.mark.parametrize(("ranks", "nodes"), [(2, 1), (2, 2)] if NIGHTLY else [(2, 2)])  # its data are for two at most
def test_the_test_script_of_accelerate_passes(lab: Lab, ranks: int, nodes: int) -> None:
    # As `accelerate launch --cpu` sets it: without it each rank trains alone on a machine without GPUs.
    words = ("--env", "ACCELERATE_USE_CPU=true", "-m", "accelerate.test_utils.scripts.test_script")
    out = train(lab, ranks, nodes, *words, timeout=280)
    assert "**Breakpoint trigger test**" in out, out
    assert f"Num processes: {ranks}" in out, out


@pytest.mark.nightly
def test_jax_finds_its_processes_once_pip_has_installed_it(lab: Lab) -> None:
    status, out = lab.command("pip", "install", "--quiet", "jax", timeout=280)
    assert status == 0, out
    assert "world 4 devices 4" in train(lab, 4, 2, "foreign/jax_sum.py")


@pytest.mark.nightly
def test_steps_of_a_library_are_profiled(lab: Lab) -> None:
    """Steps of Lightning's own loop on two ranks, with real gloo; the first four lines are in rank 0's log."""
    words = ("--profile", "5:9", "foreign/lightning_ddp.py", "1", "2", "foreign/lightning")
    out = train(lab, 2, 1, *words)
    for text in ("[0] [carme] 5 steps of ", "[0] [carme] Data loading: ", "[0] [carme] Communication: "):
        assert text in out, out
    run = json.loads(lab.command("carme-hub", "runs", "--json")[1].splitlines()[0])["id"]
    shown = lab.command("carme-hub", "runs", "show", run)[1]
    assert "Profile: communication" in shown
    trace = f"~/.carme/runs/{run}/profile/rank-1.json.gz"
    lab.check(f"import gzip, json, os; trace = json.load(gzip.open(os.path.expanduser({trace!r})))")
    assert int(lab.check("print(len(trace['traceEvents']))")) > 100


RICH = """%%distributed -n 2 --nodes 1 --gpus-per-task 0
import matplotlib.pyplot as plt
import pandas
from IPython.display import HTML, Markdown, display as show
from carme_hub.training import here

plt.plot([1, 2])
plt.show()
handle = show(HTML("<b>first</b>"), display_id=True)
handle.update(HTML("<b>second</b>"))
show(Markdown(f"*rank {here.rank}*"))
figure, axes = plt.subplots()
axes.hist([1, 2, 2])
print("backend", plt.get_backend())
table = pandas.DataFrame({"loss": [0.5, 0.25]})
table
"""


def test_figures_and_tables_of_rank_0_come_into_the_notebook(lab: Lab) -> None:
    """Those of matplotlib, pandas and IPython, as if the cell had no ``%%distributed``; of rank 0 only."""
    lab.check("%load_ext carme_hub.training")
    result = lab.run(RICH)
    assert not result.errors, result.error
    (_, first, html, markdown, table, last) = result.shown
    for figure in (first, last):
        assert base64.b64decode(figure["image/png"]).startswith(b"\x89PNG"), figure
        assert figure["text/plain"] == "<Figure size 640x480 with 1 Axes>"
    assert html["text/html"] == "<b>second</b>"
    assert markdown["text/markdown"] == "*rank 0*"
    assert "<th>loss</th>" in table["text/html"]
    assert "0.25" in table["text/plain"]
    # Rank 1 prints what it displays, and without a display there is no window.
    assert "loss" in lab.check("print(distributed.log(rank=1))")
    # They come again for whoever opens the run later, also for a function of the notebook.
    assert len(lab.run("_ = distributed.watch()").shown) == 6
    code = "def draw():\n    import matplotlib.pyplot as plt\n    plt.plot([1])\n"
    drawn = lab.run(f"{code}_ = distributed.run(draw, n=2, gpus_per_task=0)")
    assert ["image/png" in shown for shown in drawn.shown] == [False, True]


#: Reads through the app what MLflow has kept, as a program elsewhere would, with MLflow's own client.
THROUGH_THE_APP = """
import os, mlflow
os.environ["MLFLOW_TRACKING_TOKEN"] = os.environ["JUPYTERHUB_API_TOKEN"]
mlflow.set_tracking_uri(os.environ["ADDRESS"])
found = mlflow.search_runs(search_all_experiments=True, filter_string=f"tags.`carme.run` = '{os.environ['RUN']}'")
print(sorted((row["tags.mlflow.runName"] == "by hand", round(row["metrics.loss"], 2)) for _, row in found.iterrows()))
mlflow.set_experiment("from elsewhere")
with mlflow.start_run(): mlflow.log_metric("loss", 7)
"""


@pytest.mark.nightly
def test_mlflow_keeps_what_its_loggers_write_on_two_nodes_and_its_clients_read_it(lab: Lab) -> None:
    out = train(lab, 2, 2, "--name", "logged", "--no-env", "foreign/lightning_mlflow.py", "2", "1")
    assert "logged" in out
    kept = lab.check(
        "import mlflow\n"
        "found = mlflow.search_runs(search_all_experiments=True, filter_string=\"tags.`carme.run` = 'logged'\")\n"
        "print(found['experiment_id'].nunique(), found['metrics.train_loss'].notna().sum(), "
        "found['params.ranks'].dropna().tolist(), oct(os.stat(os.path.expanduser('~/.carme/mlflow')).st_mode & 0o777))"
    )
    assert kept.split() == ["2", "1", "['2']", "0o700"]
    wait_for(lambda: "<title>MLflow" in str(lab.hub.server_api("GET", "tina", "", "/mlflow/").body), 90, "the page")
    address = f"{lab.hub.demo.url}/user/tina/mlflow"
    said = lab.check(
        f"import subprocess, sys\nadded = {{'ADDRESS': {address!r}, 'RUN': 'logged'}}\n"
        f"done = subprocess.run([sys.executable, '-c', {THROUGH_THE_APP!r}], env=os.environ | added, "
        "capture_output=True, text=True)\nprint(done.stdout, done.stderr)",
        timeout=120,
    )
    assert "(True, 0.2)" in said, said
    elsewhere = lab.check("print(mlflow.search_runs(experiment_names=['from elsewhere'])['metrics.loss'].tolist())")
    assert elsewhere.strip() == "[7.0]"


@pytest.mark.nightly
def test_processes_of_optuna_on_two_nodes_share_a_journal_which_its_command_and_its_page_read(lab: Lab) -> None:
    journal = lab.check(
        "os.makedirs(os.path.expanduser('~/.carme/optuna'), 0o700, True)\n"
        "print(os.path.expanduser('~/.carme/optuna/journal.log'))"
    ).strip()
    study = f"multiprocess-{uuid.uuid4().hex[:8]}"  # the home, and so the journal, is that of all sandboxes
    out = train(lab, 4, 2, "foreign/optuna_journal.py", journal, study)
    assert out.count("trials of this process: 5") == 4, out
    status, listed = lab.command("optuna", "trials", "--storage", journal, "--study-name", study, "-f", "json")
    assert status == 0, listed
    assert listed.count('"number"') == 20, listed
    page = lambda: str(lab.hub.server_api("GET", "tina", "", "/optuna/api/studies").body)  # noqa: E731
    wait_for(lambda: study in page(), 90, "the page")


@pytest.mark.nightly
def test_a_hang_of_gloo_is_told_by_its_collective_and_a_shell_opens_in_the_rank_on_the_other_node(lab: Lab) -> None:
    words = ("-n", "2", "--nodes", "2", "--name", "uneven", "--detach", "foreign/uneven.py")
    status, out = lab.command("carme-hub", "train", *words)
    assert status == 0, out

    def stalled() -> str:
        listed = lab.command("carme-hub", "runs", "--json")[1].splitlines()
        return str(next(state for state in map(json.loads, listed) if state["id"] == "uneven")["stalled"])

    wait_for(stalled, 180, "the run to be told to hang")
    told = stalled()
    assert "rank 1 in <module> (uneven.py, line 12)" in told, told
    collective = "all_reduce of 1024 Float"
    assert f"In collective 4 of default_pg ({collective}) rank 0 waits; rank 1 began 3 ({collective}) last." in told
    inside, found = "echo $CARME_RANK $CARME_NODE; grep -c uneven /proc/$CARME_RANK_PID/cmdline", []
    for rank in (0, 1):
        status, out = lab.command("carme-hub", "runs", "shell", "uneven", "--rank", str(rank), "--", "sh", "-c", inside)
        assert status == 0, out
        found.append(out.split()[-3:])
    assert [(rank, lines) for rank, _, lines in found] == [("0", "1"), ("1", "1")], found
    assert len({node for _, node, _ in found}) == 2, found
    assert lab.command("carme-hub", "runs", "stop", "uneven")[0] == 0


@pytest.mark.nightly
def test_a_profile_leaves_a_compiled_network_alone(lab: Lab) -> None:
    out = train(lab, 1, 1, "--profile", "3:6", "--gpus-per-task", "0", "foreign/compiled.py")
    assert "compiled and trained" in out, out
    assert "4 steps of" in out, out
    assert "global hooks" not in out, out
