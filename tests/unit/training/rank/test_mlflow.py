"""Of ranks that all import MLflow at once, one makes the tables of its database, and the others find them complete."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: MLflow as far as it matters: its client takes a while to make the tables, and must not find half of them.
FORGED = """
import os, time
from pathlib import Path
__version__ = "3.0"

class MlflowClient:
    def __init__(self):
        file = Path(os.environ["MLFLOW_TRACKING_URI"].removeprefix("sqlite:///"))
        with file.open("x") as database:  # an error where another one has begun
            time.sleep(0.3)
            database.write("tables")
"""
RANK = """
import os
from pathlib import Path
from carme_hub.training.rank.libraries import mlflow
mlflow.install()
import mlflow
print(Path(os.environ["MLFLOW_TRACKING_URI"].removeprefix("sqlite:///")).read_text())
"""


def test_one_of_many_ranks_makes_the_tables(tmp_path: Path) -> None:
    (tmp_path / "mlflow.py").write_text(FORGED)
    uri = f"sqlite:///{tmp_path}/home/mlflow/mlflow.db"
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path.cwd()}", "MLFLOW_TRACKING_URI": uri}
    argv = [sys.executable, "-c", RANK]
    ranks = [subprocess.Popen(argv, env=environ, text=True, stdout=subprocess.PIPE) for _ in range(4)]
    assert [rank.communicate(timeout=60)[0] for rank in ranks] == ["tables\n"] * 4
    # A later release adds tables: again once. Its file has another size, by which Python knows that it has changed.
    (tmp_path / "mlflow.py").write_text(FORGED.replace('"3.0"', '"3.10"').replace('open("x")', 'open("a")'))
    ranks = [subprocess.Popen(argv, env=environ, text=True, stdout=subprocess.PIPE) for _ in range(4)]
    assert [rank.communicate(timeout=60)[0] for rank in ranks] == ["tablestables\n"] * 4
    assert oct((tmp_path / "home/mlflow").stat().st_mode & 0o777) == "0o700"


@pytest.mark.parametrize("uri", ["https://mlflow.example.org", "", "sqlite:////proc/nowhere/mlflow.db"])
def test_importing_mlflow_never_fails(tmp_path: Path, uri: str) -> None:
    (tmp_path / "mlflow.py").write_text("__version__ = '3.0'\ndef MlflowClient(): raise AssertionError")
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path.cwd()}", "MLFLOW_TRACKING_URI": uri}
    code = "from carme_hub.training.rank.libraries import mlflow\nmlflow.install()\nimport mlflow\nprint('fine')"
    done = subprocess.run([sys.executable, "-c", code], env=environ, text=True, capture_output=True, timeout=60)
    assert done.stdout == "fine\n", done.stderr
