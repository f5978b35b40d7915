"""``jax.distributed.initialize()`` finds the number of a rank."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from carme_hub.training.rank.libraries import jax

#: The part of jax/_src/clusters/cluster.py that registers environments and asks them (jax 0.10).
FORGED = """
class ClusterEnv:
    _cluster_types = []

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        cls._cluster_types.append(cls)


class SlurmCluster(ClusterEnv):
    name = "slurm"

    @classmethod
    def is_env_present(cls):
        return True
"""


@pytest.fixture
def clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A forged JAX that is imported after the rank has installed its hook."""
    folder = tmp_path / "jax" / "_src"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "__init__.py").touch()
    (folder / "clusters.py").write_text(FORGED)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name in ("jax", "jax._src", jax.MODULE):
        monkeypatch.delitem(sys.modules, name, raising=False)
    jax.install()
    found = importlib.import_module(jax.MODULE)

    yield found
    for name in ("jax", "jax._src", jax.MODULE):
        sys.modules.pop(name, None)


def test_a_rank_is_asked_before_jaxs_own_environments(clusters: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = clusters.ClusterEnv._cluster_types
    assert [kind.name for kind in kinds] == ["carme", "slurm"]
    for name, value in (("CARME_RANK", "3"), ("CARME_SIZE", "4"), ("JAX_COORDINATOR_ADDRESS", "10.0.0.1:4711")):
        assert not kinds[0].is_env_present()
        monkeypatch.setenv(name, value)
    assert kinds[0].is_env_present()
    assert kinds[0].get_coordinator_address(60, None) == "10.0.0.1:4711"
    assert (kinds[0].get_process_count(), kinds[0].get_process_id(), kinds[0].get_local_process_id()) == (4, 3, None)
