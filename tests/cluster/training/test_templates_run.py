"""Every template really trains: its script alone, its notebook on four ranks; N ranks equal one with N-fold batches."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from rig.hub import Hub
from rig.training import Lab

from carme_hub.training.templates import notebook, templates
from carme_hub.training.templates.kernels import NAMES as KERNELS

#: The mean loss of the last epoch has to be below, at one rank and at four. They begin at about 2.2.
BELOW = {
    "horovod-pytorch": 1.0,
    "ddp": 1.0,
    "fsdp": 0.5,
    "cpu-gloo": 1.0,
    "mixed-precision": 1.0,
    "tensorboard-logging": 1.0,
    "evaluation": 1.0,
    "lr-warmup": 0.8,
    "staging": 1.0,
    "checkpoint-resume": 1.0,
    "sweep": 0.6,
}
#: Those that train one model on all ranks with torch.
TOGETHER = [name for name in BELOW if name not in ("horovod-pytorch", "sweep")]
#: Seconds that one training may take on a machine that is busy with other tests.
SLOW = 300.0
GRADIENTS = """
import json, pathlib, sys
import torch
from carme_hub.training import here, templates
from carme_hub.training.digits import digits

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
images, labels = digits(64)
found, joined = {}, False
for name in NAMES:
    text = (templates.folder() / f"{name}.py").read_text()
    words = {"__name__": name}
    exec(compile(text, name, "exec"), words)
    words["MIXED"] = False  # half precision is no float64
    if not joined:
        words["join"]()
        joined = True
    torch.manual_seed(here.rank)  # all have to begin with what rank 0 has
    model, optimizer = words["build"](torch.device("cpu"))
    words["step"](model, optimizer, images[here.rank :: here.size], labels[here.rank :: here.size])
    whole = [each.grad.full_tensor() if hasattr(each.grad, "full_tensor") else each.grad for each in model.parameters()]
    found[name] = torch.cat([each.flatten() for each in whole]).tolist()
    if name == "evaluation":
        test = torch.utils.data.TensorDataset(*digits(words["TESTED"], seed=1))
        found["counts"] = words["evaluate"](model, test, torch.device("cpu")).flatten().tolist()
if here.rank == 0:
    pathlib.Path(f"gradients-{here.size}.json").write_text(json.dumps(found))
"""
#: The gradients are too long to be brought here.
COMPARE = """
one, four = (json.loads(Path(f"gradients-{count}.json").read_text()) for count in (1, 4))
print(json.dumps({name: {
    "numbers": len(one[name]),
    "largest": max(map(abs, one[name])),
    "apart": max(abs(a - b) for a, b in zip(one[name], four[name], strict=True)),
} for name in one if name != "counts"}))
"""
#: Trains with the checkpoint's template, and keeps which pictures each rank has learnt from, by their first bytes.
SEEN = """
import json, pathlib
from carme_hub.training import here, templates

words = {"__name__": "template"}
exec(compile((templates.folder() / "checkpoint-resume.py").read_text(), "checkpoint-resume", "exec"), words)
words.update(EPOCHS=1, BEFORE=BEFORE, FILE=pathlib.Path("seen.pt"))
real, seen = words["step"], []

def step(model, optimizer, images, labels):
    seen.extend(images.flatten(1)[:, :8].tolist())
    return real(model, optimizer, images, labels)

words["step"] = step
history = words["train"]()
pathlib.Path(f"seen-{here.size}-{here.rank}.json").write_text(json.dumps(seen))
"""

BEGIN = """
import json, os, shutil
from pathlib import Path
os.makedirs("templates-test", exist_ok=True)
os.chdir("templates-test")
"""
CLEAR = """
for file in Path().glob("*.pt"):
    file.unlink()
"""
#: Of the studies of these tests: all sandboxes of a machine share the homes of their users, and so the journal.
MARK = uuid.uuid4().hex[:8]
#: How many trials of the template's study there are in each state.
STUDY = """
import collections, optuna
from carme_hub.training import sweeps
optuna.logging.set_verbosity(optuna.logging.WARNING)
states = [trial.state.name for trial in sweeps.open_study(STUDY).get_trials()]
print(json.dumps(collections.Counter(states)))
"""


@pytest.fixture(scope="module")
def lab(site: Hub) -> Iterator[Lab]:
    opened = Lab(site, "alice", gpus=4, cpus=4)
    opened.kernel = site.new_kernel(opened.user, kernel="carme-torchrun")
    opened.check(BEGIN)
    yield opened
    opened.check("os.chdir('..'); shutil.rmtree('templates-test')")


def last(printed: str) -> float:
    """Return the last printed loss."""
    found = re.findall(r"loss ([\d.]+(?:e-?\d+)?)", printed)
    assert found, printed
    return float(found[-1])


def copied(lab: Lab, name: str) -> str:
    """Return the script of a template, in the folder of the tests."""
    code = f"from carme_hub.training import templates\nprint(templates.copy({name!r}, Path(), script=True))"
    script = lab.check(code).strip()
    assert re.fullmatch(rf"{name}(-\d+)?\.py", script)
    return script


def ranks(lab: Lab, count: int, code: str, backend: str = "torchrun") -> str:
    return lab.check(f"%%distributed -n {count} --backend {backend}\n{code}", SLOW)


def test_the_image_has_our_kernels_and_each_knows_its_backend(site: Hub, lab: Lab) -> None:
    specs = site.server_api("GET", lab.user, "", "/api/kernelspecs").body["kernelspecs"]
    assert {"carme-python", "carme-horovod-pytorch", "carme-torchrun"} <= set(specs)
    assert all({"logo-32x32", "logo-64x64", "logo-svg"} <= set(specs[name]["resources"]) for name in KERNELS)
    torchrun = lab.kernel
    output = {}
    for name in KERNELS:
        lab.kernel = site.new_kernel(lab.user, kernel=name)
        output[name] = lab.check("import os; print(os.environ.get('CARME_BACKEND'), callable(distributed.run))").strip()
    lab.kernel = torchrun
    assert output == {
        "carme-python": "None True",
        "carme-horovod-pytorch": "horovod True",
        "carme-torchrun": "torchrun True",
    }


def test_the_gallery_puts_a_template_where_jupyterlab_opens_it(site: Hub, lab: Lab) -> None:
    page = f"/user/{lab.user}/templates/"
    headers = {"Authorization": f"token {site.token}"}
    shown = site.request("GET", page, headers=headers)
    assert shown.status == 200, shown
    word = re.search(r'name="word" value="([^"]+)"', shown.body)
    assert word
    form = urlencode({"word": word[1], "name": "ddp", "kind": "notebook"})
    headers |= {"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "same-origin"}
    taken = site.request("POST", page, form, headers)
    assert taken.status == 303, taken
    place = taken.headers["Location"].removeprefix(f"{page}open/")
    assert re.fullmatch(r"ddp(-\d+)?\.ipynb", place)
    file = site.server_api("GET", lab.user, "", f"/api/contents/{place}")
    assert file.body["content"]["metadata"]["kernelspec"]["name"] == "carme-torchrun"
    assert site.server_api("DELETE", lab.user, "", f"/api/contents/{place}").status == 204
    forged = site.request("POST", page, form, headers | {"Sec-Fetch-Site": "cross-site"})
    assert forged.status == 403, forged


def test_each_template_has_a_stated_loss() -> None:
    here = {each.name for each in templates() if not each.starts_runs and "elastic" not in each.name}
    assert here == set(BELOW)


@pytest.mark.parametrize("name", BELOW)
def test_the_script_trains_alone(lab: Lab, name: str) -> None:
    script = copied(lab, name)
    alone = ("env", "OMP_NUM_THREADS=1", f"STUDY=alone-{MARK}", "python", script)
    status, printed = lab.command(*alone, timeout=SLOW)
    assert status == 0, printed
    assert last(printed) < BELOW[name]


@pytest.mark.parametrize("name", BELOW)
def test_the_notebook_trains_on_four_ranks(lab: Lab, name: str) -> None:
    [template] = [each for each in templates() if each.name == name]
    codes = ["".join(cell["source"]) for cell in notebook(template)["cells"] if cell["cell_type"] == "code"]
    lab.check(CLEAR)
    for code in codes:
        lab.check(code.replace("RANKS = 1", "RANKS = 4").replace('"digits"', f'"notebook-{MARK}"'), SLOW)
    history = json.loads(lab.check("print(json.dumps(history))"))
    assert history[-1] < BELOW[name] < 2 < history[0] or name in ("fsdp", "sweep", "lr-warmup"), history
    assert history[-1] < BELOW[name]
    if name == "tensorboard-logging":
        events = (
            "mine = [run for run in distributed.runs() if run.state()['session'] == os.environ['CARME_SESSION']]\n"
            "print(sorted({p.parent.name for p in mine[0].folder.glob('tb/**/*tfevents*')}))"
        )
        assert {f"rank{rank}" for rank in range(4)} <= set(re.findall(r"rank\d", lab.check("import os\n" + events)))


@pytest.mark.parametrize(("backend", "names"), [("torchrun", TOGETHER), ("horovod", ["horovod-pytorch"])])
def test_four_ranks_have_the_gradients_of_one_with_four_times_as_much(lab: Lab, backend: str, names: list[str]) -> None:
    for count in (1, 4):
        ranks(lab, count, GRADIENTS.replace("NAMES", repr(names)), backend)
    compared = json.loads(lab.check(COMPARE))
    assert set(compared) == set(names)
    for name, output in compared.items():
        assert output["numbers"] > 1000, name
        assert output["largest"] > 1e-3, name
        assert output["apart"] < 1e-9, name
    if backend == "torchrun":
        counts = json.loads(lab.check("print(json.dumps([each['counts'] for each in (one, four)]))"))
        assert counts[0] == counts[1]
        assert sum(counts[0]) == 1001


def test_a_stopped_training_continues_with_fewer_ranks_and_uses_each_sample_once(lab: Lab) -> None:
    ranks(lab, 4, SEEN.replace("BEFORE=BEFORE", "BEFORE=1e9"))  # the end of any job is near then
    ranks(lab, 2, SEEN.replace("BEFORE=BEFORE", "BEFORE=5"))
    code = "print(json.dumps([json.load(open(f)) for f in sorted(__import__('glob').glob('seen-*.json'))]))"
    files = json.loads(lab.check(code))
    counts = [len(file) for file in files]
    assert counts[2:] == [128] * 4  # four steps of 32, agreed on by all
    assert counts[:2] == [(2048 - 4 * 128) // 2] * 2
    pictures = [tuple(picture) for file in files for picture in file]
    assert len(pictures) == len(set(pictures)) == 2048


def test_a_sweep_goes_on_where_it_ended_with_any_number_of_ranks(lab: Lab) -> None:
    script = copied(lab, "sweep")
    counts, study = [], f"script-{MARK}"
    for ranks, trials in ((4, 16), (2, 16), (2, 20)):
        more = lab.check(
            f"text = Path({script!r}).read_text().replace('TRIALS = 16', 'TRIALS = {trials}')\n"
            "print(Path('more.py').write_text(text))"
        )
        assert more.strip().isdigit()
        words = ("carme-hub", "train", "-n", str(ranks), "--env", f"STUDY={study}", "more.py")
        status, printed = lab.command(*words, timeout=SLOW)
        assert status == 0, printed
        assert last(printed) < BELOW["sweep"]
        counts.append(json.loads(lab.check(STUDY.replace("STUDY", repr(study)))))
    assert counts[0] == counts[1]  # it had enough
    for found, least in ((counts[0], 16), (counts[2], 20)):
        assert found["COMPLETE"] + found.get("PRUNED", 0) == least, found
