"""Each rank has GPUs of its own, and finds them in the ways that code looks for them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from carme_hub.training.rank import devices
from carme_hub.training.rank.devices import NoGPU, own_devices, own_names, select_gpus, take_gpus

#: The part of torch.cuda that a rank uses (torch 2.13); ``init`` stands for the first use of CUDA by the code.
FORGED = """
selected, _queued = [], []
def _lazy_call(call): _queued.append(call)
def set_device(number): selected.append(number)
def init():
    while _queued: _queued.pop(0)()
"""


@pytest.fixture(autouse=True)
def _no_hook_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))


def test_the_ranks_of_a_node_see_all_its_gpus_and_count_their_own_by_local_rank() -> None:
    for local, name in enumerate(("4", "5", "6")):
        environ = {"CUDA_VISIBLE_DEVICES": "4,5,6"}
        select_gpus(local, 1, environ)
        own = {"CARME_DEVICES": str(local), "JAX_LOCAL_DEVICE_IDS": str(local)}
        assert environ == {"CUDA_VISIBLE_DEVICES": "4,5,6", **own}
        assert own_names(environ) == [name]


def test_a_rank_with_several_gpus_sees_only_its_own() -> None:
    for local, names in enumerate(("4,5", "6,7")):
        environ = {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}
        select_gpus(local, 2, environ)
        assert environ == {"CUDA_VISIBLE_DEVICES": names, "CARME_DEVICES": "0,1"}


def test_a_worker_of_an_elastic_run_sees_only_its_own() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}
    take_gpus(1, 2, environ)
    assert environ == {"CUDA_VISIBLE_DEVICES": "6,7", "CARME_DEVICES": "0,1"}
    assert own_devices(environ) == [0, 1]


@pytest.mark.parametrize("take", [select_gpus, take_gpus])
def test_a_rank_without_its_gpus_says_so(take: Any) -> None:
    with pytest.raises(NoGPU, match="should have 2 GPUs, as number 1 of its node, but the step has 3 there"):
        take(1, 2, {"CUDA_VISIBLE_DEVICES": "0,1,2"})
    environ: dict[str, str] = {}
    take(0, 0, environ)
    assert environ == {}
    assert own_names({"CUDA_VISIBLE_DEVICES": "0,1"}) == ["0", "1"]


def test_code_that_selects_no_gpu_gets_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "cuda.py").write_text(FORGED)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("torch", "torch.cuda"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    monkeypatch.setenv(devices.VARIABLE, "")
    monkeypatch.setenv("JAX_LOCAL_DEVICE_IDS", "")
    select_gpus(3, 1)
    import torch.cuda

    assert torch.cuda.selected == []
    torch.cuda.init()
    assert torch.cuda.selected == [3]
    for name in ("torch", "torch.cuda"):
        sys.modules.pop(name, None)
