"""A scaling curve of real trainings on the sandbox: measured from a notebook and a terminal, and shown on the form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from rig.hub import Hub
from rig.training import Lab

TEMPLATES = Path(__file__).resolve().parents[3] / "share" / "carme_hub" / "training"
SCRIPT = (TEMPLATES / "scaling.py").read_text()
#: The same steps by Horovod, whose optimizer cannot be told to be quiet: a second model is trained alone.
HOROVOD = """
import copy, torch, horovod.torch as hvd
def train(trial):
    hvd.init()
    torch.set_num_threads(1)
    alone = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    together = copy.deepcopy(alone)
    hvd.broadcast_parameters(together.state_dict(), root_rank=0)
    quiet = torch.optim.SGD(alone.parameters(), 0.01)
    loud = torch.optim.SGD(together.parameters(), 0.01)
    loud = hvd.DistributedOptimizer(loud, named_parameters=together.named_parameters())
    for step in trial:
        model, optimizer = (alone, quiet) if step.alone else (together, loud)
        optimizer.zero_grad()
        model(torch.randn(trial.batch, 64)).square().mean().backward()
        optimizer.step()
"""


@pytest.fixture(scope="module")
def lab(site: Hub) -> Iterator[Lab]:
    site.login("alice")
    found = Lab(site, gpus=1, cpus=2, memory_gib=8, time_minutes=60)
    found.check(f"open('scaling.py', 'w').write({SCRIPT!r})\nopen('hvd.py', 'w').write({HOROVOD!r})")
    yield found
    found.stop()


@pytest.fixture(scope="module")
def measured(lab: Lab) -> dict[str, Any]:
    """The template's training with 1, 2 and 4 ranks, as its notebook measures it."""
    lab.check(SCRIPT.replace('if __name__ == "__main__":', "if False:"))
    output = lab.run(
        "report = distributed.benchmark(train, [1, 2, 4], [32, 96], repeats=2, steps=5, blocks=3, warmup=2,"
        " gpus_per_task=0, name='digits.py')\nreport",
        timeout=240,
    )
    assert not output.errors, output.error
    assert "repeat 2 of 2, 4 ranks: samples a second at batch 32" in output.out
    page = output.shown[-1]["text/html"]
    assert page.count('<img src="data:image/svg+xml') == 3
    curve_json = lab.check("import json; print(json.dumps(report.curve.to_json()))")
    return {"curve": json.loads(curve_json), "text": output.shown[-1]["text/plain"], "html": page, "out": output.out}


def test_a_real_training_is_measured_at_each_size(measured: dict[str, Any]) -> None:
    curve = measured["curve"]
    assert (curve["device"], curve["image"], curve["script"]) == ("cpu", "training", "digits.py")
    assert [(p["batch"], p["ranks"], p["rate"]["count"]) for p in curve["points"]] == [
        (batch, ranks, 2) for batch in (32, 96) for ranks in (1, 2, 4)
    ]
    assert not curve["failures"]
    assert "on CPU, no GPU" in measured["text"], "what ran on CPUs is labelled so"
    for point in curve["points"]:
        assert point["rate"]["mean"] > 0
        assert 0 < point["loading"]["mean"] < 1
        assert point["hours"]["mean"] > 0
        # alone is never much slower than together, and one rank exchanges nothing
        assert 0 < point["quiet"]["mean"] < 1.6


def test_communication_costs_something_and_less_with_a_larger_batch(measured: dict[str, Any]) -> None:
    quiet = {(p["batch"], p["ranks"]): p["quiet"]["mean"] for p in measured["curve"]["points"]}
    assert quiet[32, 4] < 0.97 * quiet[32, 1]
    assert quiet[32, 4] < 1.25 * quiet[96, 4]


def test_the_curve_is_kept_and_written_in_every_format(lab: Lab, measured: dict[str, Any]) -> None:
    status, output = lab.command(
        "carme-hub", "scaling", "report", "digits.py", "-o", "c.png", "-o", "c.svg", "-o", "c.csv"
    )
    assert status == 0, output
    assert "samples/s" in output
    check = "print(open('c.png','rb').read(8), open('c.svg').read(4), open('c.csv').read(6))"
    assert lab.check(check).strip() == r"b'\x89PNG\r\n\x1a\n' <svg script"
    assert lab.check("import os; print(sorted(os.listdir(os.path.expanduser('~/.carme/scaling'))))").count(
        "training--digits.py"
    )


def test_the_form_shows_it_to_its_user_and_to_nobody_else(lab: Lab, site: Hub, measured: dict[str, Any]) -> None:
    advice = measured["text"].splitlines()
    output = next(line for line in advice if re.match("Ask for|No bend", line))
    sentence = re.split(r"(?<=[.]) ", output)[0]
    page = unescape(_text(site.login("alice").get("/hub/spawn/alice/other").body))
    assert "digits.py" in page
    assert sentence in page
    assert "digits.py" not in site.login("bob").get("/hub/spawn").body


def _text(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page))


def test_horovod_is_measured_by_the_command(lab: Lab) -> None:
    options = [
        "--ranks",
        "1,2",
        "--batch",
        "16",
        "--repeats",
        "1",
        "--steps",
        "4",
        "--blocks",
        "2",
        "--backend",
        "horovod",
    ]
    status, output = lab.command("carme-hub", "scaling", "run", *options, "--gpus-per-task", "0", "hvd.py", timeout=180)
    assert status == 0, output
    assert "horovod" in output
    assert "Measured once" in output
    assert "not measured" not in output


def test_ranks_on_two_nodes_are_measured_in_a_companion(lab: Lab) -> None:
    out = lab.run(
        "report = distributed.benchmark('scaling.py', [2], 32, per_node=1, repeats=1, steps=3, blocks=2,"
        " name='two-nodes.py', profile=True)\nprint(report.curve.runs, report.curve.notes)",
        timeout=180,
    )
    assert not out.errors, out.error
    assert "nodes=2" in out.out
    said = lab.check("print(report.curve.profiled)\nprint(report)")
    shares = re.search(r"loading=([\d.]+), communication=([\d.]+), small=None", said)
    assert shares is not None, (said, out.out)
    assert 0 < float(shares[1]) < 1, "the template has a DataLoader"
    assert 0 < float(shares[2]) < 1
    assert "Profile of 2 ranks with batch 32 (run " in said
    assert "on CPU, no GPU" in lab.check("print(report)"), "virtual GPUs are none"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"script": "x"}, 400),
        ("x" * 9000, 413),
        ({"limit": "<script>"}, 400),
    ],
)
def test_the_hub_rejects_an_invalid_curve(lab: Lab, site: Hub, body: Any, status: int) -> None:
    answer = site.api("PUT", f"/carme/sessions/{lab.session}/scaling", body)
    assert answer.status == status, answer


def test_no_other_user_can_send_a_curve(lab: Lab, site: Hub) -> None:
    bob = site.api("POST", "/users/bob/tokens", {"note": "test"}).body["token"]
    curve = {"script": "theirs.py"}
    assert site.api("PUT", f"/carme/sessions/{lab.session}/scaling", curve, token=bob).status == 404
    assert site.api("PUT", f"/carme/sessions/{lab.session}/scaling", curve, token="nobody").status == 403
