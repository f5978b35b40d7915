"""GPUs of a sandbox are called virtual wherever a run names them; and Slurm without PMIx is said in words."""

from __future__ import annotations

from typing import Any

import pytest

from carme_hub.training.conductor import fixed_size
from carme_hub.training.conductor.companion_price import resources_text
from carme_hub.training.launch.new_run import initial_state
from carme_hub.training.notebook import display
from carme_hub.training.run import description
from carme_hub.training.run.description import View
from carme_hub.training.run.placement import Placement
from carme_hub.training.run.run_folder import has_virtual_gpus

TOLD: dict[str, Any] = {"asked": {"name": "run1", "ranks": 4, "backend": "horovod"}, "kind": "cell", "session": ""}


def test_a_run_knows_by_its_sessions_environment() -> None:
    assert has_virtual_gpus({"CARME_VIRTUAL_GPUS": "1"})
    assert not has_virtual_gpus({})
    assert initial_state("x", TOLD)["virtual"] is False
    assert initial_state("x", {**TOLD, "virtual": True})["virtual"] is True


@pytest.mark.parametrize(("kind", "said"), [(True, "virtual GPU"), (False, "GPU")])
def test_the_display_the_table_and_the_price_name_them(kind: bool, said: str) -> None:
    state = initial_state("x", {**TOLD, "virtual": kind})
    state |= {"gpus": 4, "gpu_seconds": 168, "began": 100.0, "state": "running"}
    view = View(state, 142.0)
    assert f"run1: 4 ranks, 4 {said}s, horovod; 0:42 elapsed, 2:48 of {said} time" in description.as_text(view)
    assert f", 4 {said}s, horovod" in display.as_html(view)
    for table in (description.runs_text([state], 142.0), display.runs_html([state], 142.0)):
        assert ("2:48 (virtual)" in table) is kind
        assert "2:48" in table
    assert resources_text(Placement(4, 2, 2, companion=True), virtual=kind) == f"2 nodes with 8 {said}s"


@pytest.mark.parametrize(
    "line",
    [
        "srun: error: cannot find mpi plugin for mpi/pmix",
        "srun: error:  mpi/pmix_v4: init: (null) [0]: mpi_pmix.c:195: pmi/pmix: can not load PMIx library",
        "srun: error: Invalid MPI type 'pmix', --mpi=list for acceptable types",
    ],
)
def test_a_slurm_without_pmix_is_known_by_what_srun_says(line: str) -> None:
    """As 22.05 says it without the plugin, and without the library that the plugin loads."""
    assert fixed_size._NO_PMIX.search(line)
    assert "Debian: libpmix-dev" in fixed_size.NO_PMIX
