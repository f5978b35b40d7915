"""Which rank failed first, from what the ranks, their nodes and Slurm say."""

from __future__ import annotations

from typing import Any

import pytest

from carme_hub.training.conductor.cause import (
    SilentEnd,
    assertion_text,
    echoes,
    is_consequence,
    last_words,
    says_out_of_memory,
    silent_ends,
)
from carme_hub.training.conductor.conductor import MAX_MESSAGE, Failed
from carme_hub.training.run.output import TaskEnd


def error(rank: int, type: str, message: str, traceback: str = "") -> dict[str, Any]:
    return {"rank": rank, "node": "n1", "type": type, "message": message, "traceback": traceback}


CHAINED = """Traceback (most recent call last):
  File "train.py", line 9, in <module>
    dist.all_reduce(x)
RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:4711

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "train.py", line 11, in <module>
    raise ValueError("training failed")
ValueError: training failed
"""
OWN = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    dist.init_process_group("gloo", timeout=timedelta(seconds=9)); 1 / 0  # connection reset
ZeroDivisionError: division by zero
"""


@pytest.mark.parametrize(
    ("raised", "follows"),
    [
        (error(0, "RuntimeError", "Connection reset by peer"), True),
        (error(0, "torch.distributed.DistBackendError", "NCCL error"), True),
        (error(0, "horovod.common.exceptions.HorovodInternalError", "all-reduce failed"), True),
        (error(0, "ValueError", "training failed", CHAINED), True),
        (error(0, "ZeroDivisionError", "division by zero", OWN), False),
        (error(0, "KeyError", "'lr'"), False),
    ],
)
def test_an_error_follows_from_a_loss_where_it_or_what_it_was_raised_from_says_so(
    raised: dict[str, Any], follows: bool
) -> None:
    assert is_consequence(raised) is follows


@pytest.mark.parametrize(
    ("ends", "slurm", "reported", "succeeded", "found"),
    [
        # Slurm names a survivor first; the node of the killed rank has said it before.
        ([TaskEnd(2, 137)], [(0, "Exited with exit code 1"), (2, "Killed")], {0, 1}, set(), [(2, "Ended")]),
        ([TaskEnd(0, 1), TaskEnd(1, 134)], [], {0}, set(), [(1, "Ended")]),
        ([TaskEnd(1, 137, out_of_memory=True)], [], set(), set(), [(1, "OutOfMemory")]),
        ([], [(3, "Out Of Memory")], set(), set(), [(3, "OutOfMemory")]),
        ([TaskEnd(0, 0)], [], set(), {0}, []),
        ([TaskEnd(0, 0)], [], set(), set(), [(0, "Ended")]),
        ([TaskEnd(0, 71, started=False)], [], set(), set(), [(0, "NotStarted")]),
        ([TaskEnd(0, 76)], [], set(), {0}, [(0, "Ended")]),  # its code succeeded, and its container failed
    ],
)
def test_ranks_that_ended_without_a_report_are_found_in_the_order_of_their_ends(
    ends: list[TaskEnd],
    slurm: list[tuple[int, str]],
    reported: set[int],
    succeeded: set[int],
    found: list[tuple[int, str]],
) -> None:
    assert [(each.rank, each.type) for each in silent_ends(ends, slurm, reported, succeeded)] == found


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (
            TaskEnd(0, 137),
            "was killed by SIGKILL without an error message; a frequent cause is too little memory",
        ),
        (
            TaskEnd(0, 137, out_of_memory=True, memory_mib=8192),
            "was killed because the memory of its job was used up (limit 8 GiB). Use smaller batches or fewer loader "
            "workers, or a profile with more memory",
        ),
        (TaskEnd(0, 139), "was killed by SIGSEGV without an error message"),
        (TaskEnd(0, 3), "ended with exit status 3 without an error message"),
        (TaskEnd(0, 0), "ended before its code did, without an error: os._exit() was called"),
    ],
)
def test_the_end_of_such_a_rank_is_said(end: TaskEnd, text: str) -> None:
    assert silent_ends([end], [], set(), set()) == [
        SilentEnd(0, text, "OutOfMemory" if end.out_of_memory else "Ended"),
    ]


@pytest.mark.parametrize(
    ("text", "how"),
    [
        ("Exited with exit code 139", "was killed by SIGSEGV without an error message"),
        ("Exited with exit code 255", "was killed by signal 127 without an error message"),
        ("Segmentation fault (core dumped)", "ended: Segmentation fault (core dumped)"),
    ],
)
def test_slurms_line_is_enough_where_the_node_says_nothing(text: str, how: str) -> None:
    assert silent_ends([], [(1, text)], set(), set()) == [SilentEnd(1, how)]


def test_slurms_own_word_on_memory_is_understood() -> None:
    line = "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed."
    assert says_out_of_memory(["srun: error: n1: task 1: Killed", line])
    assert not says_out_of_memory(["srun: error: n1: task 1: Killed"])


def test_echoes_are_the_consequences_of_other_ranks() -> None:
    lost, own = error(0, "RuntimeError", "Connection reset by peer"), error(2, "KeyError", "'lr'")
    assert [each["rank"] for each in echoes([lost, own], 1)] == [0]
    assert echoes([lost, own], 0) == []
    assert echoes([lost], None) == []


def test_a_long_message_ends_at_a_word_and_says_that_there_is_more() -> None:
    message = "torch.OutOfMemoryError in rank 0 on n1: " + "memory " * 100
    said = str(Failed(message))
    assert len(said) <= MAX_MESSAGE + 2
    assert said.endswith("memory …")
    assert str(Failed("short")) == "short"
    assert len(str(Failed("ValueError in rank 0: " + "x" * 900))) == MAX_MESSAGE + 2


#: As torch 2.11 prints it on an H100: the watchdog of NCCL, and an exception in a thread of C++.
WATCHDOG = (
    "[rank0]:[E1126 17:14:17.134 ProcessGroupNCCL.cpp:2119] [PG ID 0 PG GUID 0(default_pg) Rank 0] Process group "
    "watchdog thread terminated with exception: [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=8192, NumelOut=8192, Timeout(ms)=10000) ran for 10054 milliseconds "
    "before timing out."
)
CPP = (
    "terminate called after throwing an instance of 'c10::AcceleratorError'",
    "  what():  CUDA error: misaligned address",
)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            ["step 3", WATCHDOG, *CPP],
            "Collective 4 (allreduce) did not end within 10 s, says torch's watchdog: another rank did not take "
            "part in it, or the network between them failed",
        ),
        (CPP, "CUDA error: misaligned address"),
        (["step 3"], ""),
    ],
)
def test_the_last_words_of_a_killed_rank_are_those_of_its_libraries(lines: list[str], said: str) -> None:
    assert last_words(lines) == said


def test_the_assertion_of_a_kernel_is_told_with_how_to_find_its_line() -> None:
    raised = error(
        0, "torch.AcceleratorError", "CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert'"
    )
    line = (
        "/pytorch/aten/src/ATen/native/cuda/IndexKernel.cu:111: operator(): block: [0,0,0], thread: [0,0,0] Assertion "
    )
    line += '`-sizes[i] <= index && index < sizes[i] && "index out of bounds"` failed.'
    assert assertion_text(raised, ["step 3", line, line]) == (
        'Failed: -sizes[i] <= index && index < sizes[i] && "index out of bounds". To see in which line: '
        "--env CUDA_LAUNCH_BLOCKING=1"
    )
    assert assertion_text(raised, ["step 3"]) == "To see in which line: --env CUDA_LAUNCH_BLOCKING=1"
    assert assertion_text(error(0, "ValueError", "no"), [line]) == ""
