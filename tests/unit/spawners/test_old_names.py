"""What configurations named before the packages were arranged by subject still works, and says the new name."""

from __future__ import annotations

import importlib

import pytest


@pytest.mark.parametrize(
    ("module", "name"),
    [("carme_hub.spawners.slurm", "SlurmContainerSpawner"), ("carme_hub.spawners.docker", "CarmeDockerSpawner")],
)
def test_a_spawner_is_found_by_its_old_name_with_a_warning(module: str, name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"{module}.spawner.{name}"):
        found = getattr(importlib.import_module(module), name)
    assert found.__module__ == f"{module}.spawner"
    with pytest.raises(AttributeError, match="nothing"):
        _ = importlib.import_module(module).nothing
