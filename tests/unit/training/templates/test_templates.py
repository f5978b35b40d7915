"""A template's notebook is its script, every collective has a name, and a copy never lands on anything."""

from __future__ import annotations

import ast
import errno
import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from carme_hub.training import templates
from carme_hub.training.templates import kernels

ROOT = Path(__file__).resolve().parents[4]
SHIPPED = ROOT / "share/carme_hub/training"
NAMES = sorted(file.stem for file in SHIPPED.glob("*.py"))
#: Operations of Horovod that wait for the same of other ranks; without a name they are matched by counting.
COLLECTIVES = {
    *("allreduce", "allreduce_", "allreduce_async", "allgather", "allgather_async", "broadcast", "broadcast_"),
    *("alltoall", "reducescatter", "grouped_allreduce", "grouped_allgather", "allgather_object", "broadcast_object"),
}
#: What issue and documentation promise.
PROMISED = {
    *("horovod-pytorch", "ddp", "fsdp", "cpu-gloo", "sweep", "staging", "checkpoint-resume", "mixed-precision"),
    *("tensorboard-logging", "evaluation", "lr-warmup"),
}


def test_all_that_is_promised_is_there_and_what_is_not_says_why() -> None:
    assert set(NAMES) >= PROMISED
    assert [title for title, why in templates.UNAVAILABLE if "Keras" in why] == ["Horovod with Keras"]


@pytest.mark.parametrize("name", NAMES)
def test_the_notebook_is_made_of_the_script(name: str) -> None:
    shipped = (SHIPPED / f"{name}.ipynb").read_text(encoding="utf-8")
    made = templates.notebook_text(templates.read(SHIPPED / f"{name}.py"))
    assert shipped == made, "run: python -m carme_hub.training.templates share/carme_hub/training"
    cells = json.loads(shipped)["cells"]
    script = (SHIPPED / f"{name}.py").read_text(encoding="utf-8")
    if templates.read(SHIPPED / f"{name}.py").starts_runs:
        assert script.endswith("".join(cells[1]["source"]) + "\n")
        return
    run = "".join(cells[2]["source"])
    assert run.startswith("%%distributed -n {RANKS} --backend ")
    assert script.endswith(run.partition("\n")[2] + "\n")


def test_no_notebook_is_left_of_a_script_that_is_gone() -> None:
    assert sorted(file.stem for file in SHIPPED.glob("*.ipynb")) == NAMES
    assert sorted(templates.ORDER) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_script_is_short_and_named_so_that_it_hides_no_module(name: str) -> None:
    text = (SHIPPED / f"{name}.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    found = find_spec(name)  # a folder without a module, such as one of these tests, hides nothing
    assert "-" in name or ((found is None or not found.origin) and name not in ("tensorboard", "torch", "horovod"))
    assert name not in sys.stdlib_module_names


def unnamed(text: str) -> list[int]:
    """Return the lines of Horovod's operations that have no name."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return [
        call.lineno
        for call in calls
        if isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id == "hvd"
        and call.func.attr in COLLECTIVES
        and not any(word.arg == "name" for word in call.keywords)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_every_operation_of_horovod_has_a_name(name: str) -> None:
    assert unnamed((SHIPPED / f"{name}.py").read_text(encoding="utf-8")) == []


def test_an_operation_without_a_name_would_be_found() -> None:
    assert unnamed("hvd.allreduce(x)\nhvd.allreduce(x, name='y')\nhvd.broadcast_object(z)") == [1, 3]


@pytest.mark.parametrize("script", [False, True])
def test_a_copy_takes_a_name_that_is_free(tmp_path: Path, script: bool) -> None:
    suffix = ".py" if script else ".ipynb"
    (tmp_path / f"ddp{suffix}").write_text("mine")
    (tmp_path / f"ddp-2{suffix}").symlink_to("/nowhere")
    copied = templates.copy("ddp", tmp_path, script=script)
    assert copied == tmp_path / f"ddp-3{suffix}"
    assert copied.read_text(encoding="utf-8") == (SHIPPED / f"ddp{suffix}").read_text(encoding="utf-8")
    assert (tmp_path / f"ddp{suffix}").read_text() == "mine"


@pytest.mark.parametrize("name", ["", "nothing", "../ddp", "ddp.py", "/etc/passwd", "DDP", "ddp\0"])
def test_a_name_that_is_none_of_ours_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(templates.TemplateError, match="ddp"):
        templates.copy(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(templates.TemplateError, match="away cannot be written: No such file"):
        templates.copy("ddp", tmp_path / "away")


@pytest.mark.parametrize(
    ("number", "ways"), [(errno.EDQUOT, "Remove what you no longer need"), (errno.EIO, "your administrator")]
)
def test_a_copy_that_does_not_fit_leaves_no_half_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, ways: str
) -> None:
    opened = os.fdopen

    def full(descriptor: int, *words: Any, **more: Any) -> Any:
        file = opened(descriptor, *words, **more)
        file.write("{")
        file.close()
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fdopen", full)
    with pytest.raises(templates.TemplateError, match=f"{os.strerror(number)}. .*{ways}"):
        templates.copy("ddp", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_a_backend_lacks_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "find_spec", lambda module: None if module == "horovod" else object())
    assert "carme-hub image build --training" in kernels.missing_for("horovod")
    assert "--backend torchrun" in templates.find_template("horovod-pytorch").missing
    assert templates.find_template("ddp").missing == ""


def test_the_image_of_the_site_that_has_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "find_spec", lambda _module: None)
    monkeypatch.setenv("CARME_IMAGES", '{"torchrun": ["pytorch-2026", "big"], "horovod": ["big"]}')
    assert kernels.missing_for("torchrun").startswith("There is no torch here. Use the image “pytorch-2026”, or")
    assert "Choose the image “big” when you start" in kernels.hint_for_module("horovod")
    assert "Use the image “training”" in kernels.missing_for("mpi"), "of none of the site's images it is known"
    assert kernels.images_with("torchrun") == ["pytorch-2026", "big"]
    for wrong in ("", "{", "[]", '{"torchrun": 7}'):
        assert kernels.images_with("torchrun", {"CARME_IMAGES": wrong}) == []


def test_options_of_a_template_are_in_its_notebook(tmp_path: Path) -> None:
    (tmp_path / "more.py").write_text('"""More\n\nText.\n"""\n\n# %%distributed --elastic 2:8\nhistory = []\n')
    template = templates.read(tmp_path / "more.py")
    assert template.options == "--elastic 2:8"
    run = "".join(templates.notebook(template)["cells"][2]["source"])
    assert run.startswith("%%distributed -n {RANKS} --backend torchrun --elastic 2:8 --pull history\n")
