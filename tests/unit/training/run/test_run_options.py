"""A line that makes sense is a run; one that does not says what to write."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carme_hub.training.run.run_options import (
    InvalidOptions,
    RunOptions,
    from_json,
    parse_duration,
    parse_line,
    parse_with_program,
)


def test_the_line_of_the_documentation() -> None:
    line = "-n 4 --nodes 2 --gpus-per-task 1 --backend horovod --elastic 2:8 --time 30m --name run1 --push cfg,batch"
    assert parse_line(line) == RunOptions(4, 2, 1, "horovod", (2, 8), 1800, "run1", push=("cfg", "batch"))
    assert parse_line("-n 2 --detach --dry-run") == RunOptions(2, detach=True, dry_run=True)
    sized = parse_line("-n 8 --gpus-per-node 4 --cpus-per-task 6 --mem-per-gpu 16G")
    assert (sized.gpus_per_node, sized.cpus_per_task, sized.mem_per_gpu) == (4, 6, 16384)
    assert [parse_line(f"-n 2 --mem-per-gpu {text}").mem_per_gpu for text in ("800M", "800", "1t")] == [
        800,
        800,
        1 << 20,
    ]
    assert parse_line("-n 2 --pull 'history, model,history'").pull == ("history", "model")


@pytest.mark.parametrize(
    ("words", "program"),
    [
        ("-n 4 train.py --name x", ["train.py", "--name", "x"]),
        ("-n4 --name=a --detach train.py", ["train.py"]),
        ("-n 4 --name a --all --env A=1 --env B -m package.train -n 9", ["-m", "package.train", "-n", "9"]),
        ("-n 4 --detach -- ./program -m x", ["./program", "-m", "x"]),
        ("-n 4 -- -strange", ["-strange"]),
        ("-n 4", []),
    ],
)
def test_the_program_begins_behind_the_options(words: str, program: list[str]) -> None:
    options, found, own = parse_with_program(words.split(), {"--all": {"action": "store_true"}})
    assert (options.ranks, found) == (4, program)
    assert own.all is ("--all" in words)
    assert options.name == ("a" if "name" in words.partition("train")[0] else "")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("-n 2 --max-restarts -1", "--max-restarts -1: from 0 to 100"),
        ("-n 2 --max-restarts 3 --elastic 1:2", "--max-restarts: an elastic run starts lost ranks again by itself"),
        ("-n 2 --env LD_PRELOAD=x", "--env: LD_PRELOAD cannot go along: it changes how programs are loaded"),
        ("-n 2 --env '1 x'", "--env: '1 x' is not the name of a variable"),
    ],
)
def test_a_variable_that_cannot_go_along_is_refused(line: str, said: str) -> None:
    with pytest.raises(InvalidOptions, match=re.escape(said)):
        parse_line(line)


def test_a_file_gives_back_what_was_asked_for() -> None:
    for each in (RunOptions(2), RunOptions(4, 2, 1, "horovod", (2, 8), 1800, "run1", push=("cfg",), pull=("history",))):
        assert from_json(json.loads(json.dumps(asdict(each)))) == each
    assert RunOptions(2).gpus_per_task is None
    assert parse_line("-n 2 --gpus-per-task 0").gpus_per_task == 0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "required: -n"),
        ("-n", "-n: expected one argument"),
        ("-n four", "invalid int value: 'four'"),
        ("-n 0", "from 1 to 4096 ranks"),
        ("-n 4 --nodes 5", "4 ranks fit on at most 4 nodes"),
        ("-n 4 --nodes -1", "cannot be negative"),
        ("-n 4 --gpus-per-node -1", "cannot be negative"),
        ("-n 4 --gpus-per-node 2 --nodes 2", "both set the number of nodes"),
        ("-n 4 --mem-per-gpu much", "--mem-per-gpu much: write it as 16G or 800M"),
        ("-n 4 --mem-per-gpu 0G", "write it as 16G or 800M"),
        ("-n 4 --backend nccl", "choose one of horovod, torchrun, mpi"),
        ("-n 4 --elastic 5:8", "-n 4 must be between the two"),
        ("-n 4 --elastic 2-8", "as in 2:8"),
        ("-n 4 --elastic 2:193", "at most 192 ranks"),
        ("-n 4 --backend mpi --elastic 2:8", "MPI cannot change"),
        ("-n 4 --time soon", "30m, 1h30m or 2d"),
        ("-n 4 --time 0m", "30m, 1h30m or 2d"),
        ("-n 4 --name ../x", "--name: letters"),
        ("-n 4 --push a;b", "not a variable name"),
        ("-n 4 --pull class", "not a variable name"),
        ("-n 4 --detach --pull x", "waits for the end"),
        ("-n 4 --detach --requeue", "cannot be detached"),
        ("-n 4 --name 'x", "quotation mark"),
        ("-n 4 --det", "unrecognized arguments: --det"),
        ("-n 4 script.py", "unrecognized arguments: script.py"),
    ],
)
def test_what_makes_no_sense_is_named(line: str, said: str) -> None:
    with pytest.raises(InvalidOptions, match="(?i)" + re.escape(said)):
        parse_line(line)


@pytest.mark.parametrize(("text", "seconds"), [("30m", 1800), ("1h30m", 5400), ("2d", 172_800), ("90", 5400)])
def test_times_are_written_as_people_and_slurm_write_them(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@given(st.text(max_size=60))
def test_whatever_is_written_is_a_run_or_is_refused(line: str) -> None:
    with contextlib.suppress(InvalidOptions):
        assert parse_line(f"-n 2 {line}").ranks >= 1
