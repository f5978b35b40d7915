"""What the kernel or terminal has set goes along to the ranks, apart from what would do harm there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from carme_hub.training.run.environment import collect, session_environ, split_assignment

BEFORE = {"PATH": "/opt/venv/bin:/bin", "HOME": "/home/alice", "HF_HOME": "/site"}


def test_what_was_set_since_the_session_began_goes_along() -> None:
    now = {
        **BEFORE,
        "NCCL_DEBUG": "INFO",
        "HF_HOME": "/home/alice/hf",
        "WANDB_API_KEY": "s3cret",
        "OMP_NUM_THREADS": "2",
    }
    found = collect((), environ=now, before=BEFORE)
    assert found.values == {name: now[name] for name in ("NCCL_DEBUG", "HF_HOME", "WANDB_API_KEY", "OMP_NUM_THREADS")}
    assert found.names() == {
        "forwarded": ["HF_HOME", "NCCL_DEBUG", "OMP_NUM_THREADS", "WANDB_API_KEY"],
        "left_out": [],
    }


@pytest.mark.parametrize(
    "name",
    [
        *("LD_PRELOAD", "LD_LIBRARY_PATH", "GCONV_PATH", "PYTHONHOME", "BASH_ENV"),
        *("SLURM_NTASKS", "SBATCH_ACCOUNT", "SRUN_CPUS", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"),
        *("RANK", "LOCAL_RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "HOROVOD_RANK", "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_what_would_steer_srun_the_loader_or_a_rank_is_left_out_and_named(name: str) -> None:
    found = collect((), environ={**BEFORE, name: "x"}, before=BEFORE)
    assert (found.values, found.left_out) == ({}, (name,))
    with pytest.raises(ValueError, match=f"{name} cannot go along: "):
        split_assignment(f"{name}=x")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("JUPYTERHUB_API_TOKEN", "s3cret"),
        ("JPY_SESSION_NAME", "x.ipynb"),
        ("CARME_BACKEND", "horovod"),
        ("MPLBACKEND", "module://matplotlib_inline.backend_inline"),
        ("TERM", "xterm"),
        ("SHLVL", "2"),
        ("BASH_FUNC_module%%", "() { :; }"),
    ],
)
def test_what_is_the_sessions_or_the_terminals_stays_there_without_a_word(name: str, value: str) -> None:
    found = collect((), environ={**BEFORE, name: value}, before=BEFORE)
    assert (found.values, found.left_out) == ({}, ())


@pytest.mark.parametrize(
    "name", ["HOROVOD_FUSION_THRESHOLD", "OMPI_MCA_btl", "MPLBACKEND", "PYTHONPATH", "NCCL_IB_HCA"]
)
def test_settings_of_libraries_go_along(name: str) -> None:
    assert collect((), environ={name: "x"}, before=BEFORE).values == {name: "x"}


def test_a_named_variable_goes_along_also_where_it_is_as_before() -> None:
    found = collect(
        ("HF_HOME", "A=1=2", "TERM"), only_named=True, environ={**BEFORE, "TERM": "x", "B": "2"}, before=BEFORE
    )
    assert found.values == {"HF_HOME": "/site", "A": "1=2", "TERM": "x"}


def test_outside_of_a_session_only_named_variables_go_along() -> None:
    assert collect(("B",), environ={"A": "1", "B": "2"}, before=None).values == {"B": "2"}


@pytest.mark.parametrize(
    ("word", "said"), [("GONE", "GONE is not set here"), ("a b", "not the name of a variable"), ("=1", "not the name")]
)
def test_a_name_that_is_none_is_refused(word: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        collect((word,), environ={}, before={})


def test_the_environment_of_the_session_is_that_of_its_oldest_process() -> None:
    """A real chain of processes: the session's, which changes its own environment, and a kernel below it."""
    kernel = "from carme_hub.training.run.environment import *; import json; print(json.dumps(session_environ()))"
    session = (
        "import os, subprocess, sys; os.environ['JUPYTERHUB_API_TOKEN'] = 'later'; os.environ['SET'] = 'later'; "
        "subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)"
    )
    own = {"PATH": os.environ["PATH"], "CARME_SESSION_FOLDER": "/s", "SET": "first"}
    done = subprocess.run([sys.executable, "-c", session, kernel], env=own, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == own


def test_there_is_none_outside_of_a_session(tmp_path: Path) -> None:
    assert session_environ(7, tmp_path) is None
