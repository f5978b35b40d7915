"""Every Reason code of Slurm has a sentence that says what to do; the page in docs/reference has them all."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta, timezone
from pathlib import Path

import pytest

from carme_hub.domain.cluster.jobs import Job, Phase
from carme_hub.domain.cluster.reason_codes import CODES
from carme_hub.domain.cluster.reasons import (
    LAUNCH_CODES,
    end_sentence,
    reason_sentence,
    refusal_sentence,
    waiting_sentence,
)
from carme_hub.domain.cluster.resources import Gpus

REFERENCE = Path(__file__).parents[4] / "docs/reference/slurm-reasons.md"
NOW = 1_795_229_612.0
WAITS = Job(7, "carme-x", "alice", "PENDING", Phase.WAITING, "Priority", gpus=Gpus("a100", 2), start=NOW + 600)

#: As the shared library of Slurm 22.05.8 names them.
_LIMITS = """
AssocGrpBB AssocGrpBBMinutes AssocGrpBilling AssocGrpBillingRunMinutes AssocGrpCPUMinutesLimit
AssocGrpCPURunMinutesLimit AssocGrpCpuLimit AssocGrpEnergy AssocGrpGRES AssocGrpGRESMinutes AssocGrpGRESRunMinutes
AssocGrpJobsLimit AssocGrpLicense AssocGrpMemLimit AssocGrpMemMinutes AssocGrpNodeLimit AssocGrpSubmitJobsLimit
AssocGrpUnknown AssocGrpWallLimit AssocMaxBBPerJob AssocMaxCpuMinutesPerJobLimit AssocMaxCpuPerJobLimit
AssocMaxCpuPerNode AssocMaxGRESMinutesPerJob AssocMaxGRESPerJob AssocMaxGRESPerNode AssocMaxJobsLimit
AssocMaxMemPerJob AssocMaxNodePerJobLimit AssocMaxSubmitJobLimit AssocMaxWallDurationPerJobLimit MaxCpuPerAccount
MaxGRESPerAccount MaxJobsPerAccount MaxMemoryPerAccount MaxSubmitJobsPerAccount QOSGrpBillingMinutes QOSGrpGRES
QOSGrpGRESMinutes QOSGrpGRESRunMinutes QOSGrpCpuLimit QOSGrpJobsLimit QOSGrpMemLimit QOSGrpMemoryMinutes
QOSGrpSubmitJobsLimit QOSGrpWallLimit QOSMaxCpuPerUserLimit QOSMaxGRESMinutesPerJob QOSMaxGRESPerJob
QOSMaxGRESPerNode QOSMaxGRESPerUser QOSMaxJobsPerUserLimit QOSMaxMemoryPerUser QOSMaxNodePerUserLimit
QOSMaxSubmitJobPerUserLimit QOSMaxWallDurationPerJobLimit QOSMinCpuNotSatisfied QOSMinGRES QOSMinMemory
"""
LIMITS = _LIMITS.split()


@pytest.mark.parametrize("code", [*LIMITS, *CODES])
def test_every_code_has_a_sentence(code: str) -> None:
    sentence = reason_sentence(code)
    assert sentence.endswith(".")
    assert "Slurm says" not in sentence


@pytest.mark.parametrize("code", LIMITS)
def test_a_limit_is_named(code: str) -> None:
    assert code in reason_sentence(code)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("QOSMaxGRESPerUser", ("GPUs", "one user", "end another session")),
        ("QOSGrpGRES", ("GPUs", "quality of service", "all its users")),
        ("AssocGrpGRESMinutes", ("budget", "your account", "GPUs")),
        ("QOSMaxWallDurationPerJobLimit", ("run time", "one job")),
        ("AssocMaxJobsLimit", ("running jobs", "one user")),
        ("ReqNodeNotAvail, UnavailableNodes:node[1-2]", ("down",)),
        ("ReqNodeNotAvail, Reserved for maintenance", ("reserved",)),
        ("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions", ("down",)),
        ("(launch failed requeued held)", ("held",)),
    ],
)
def test_the_sentence_says_whose_limit_and_what_to_do(code: str, words: tuple[str, ...]) -> None:
    for word in words:
        assert word in reason_sentence(code)


def test_an_unknown_code_is_shown_as_it_is() -> None:
    assert reason_sentence("SomethingNew") == "Slurm says: SomethingNew"
    assert reason_sentence("") == ""


def test_a_waiting_job_says_what_it_waits_for() -> None:
    assert waiting_sentence(WAITS, 1, NOW) == "waiting for 2 × a100; 1 ahead of you; expected start 03:03"
    assert waiting_sentence(replace(WAITS, start=0), 0, NOW) == "waiting for 2 × a100; you are next"
    zone = timezone(timedelta(hours=1))
    assert waiting_sentence(WAITS, None, NOW, zone) == "waiting for 2 × a100; expected start 04:03"


def test_an_estimate_is_said_only_when_slurm_has_one_that_lies_ahead() -> None:
    assert "expected" not in waiting_sentence(replace(WAITS, start=0), 3, NOW)
    assert "expected" not in waiting_sentence(replace(WAITS, start=NOW - 5), 3, NOW)
    assert waiting_sentence(replace(WAITS, start=NOW + 86400), 3, NOW).endswith("expected start Sun 02:53")
    assert waiting_sentence(replace(WAITS, start=NOW + 40 * 86400), 3, NOW).endswith("expected start 2026-12-31 02:53")


def test_a_limit_is_said_in_the_place_of_a_position() -> None:
    sentence = waiting_sentence(replace(WAITS, reason="QOSMaxGRESPerUser", start=0), 4, NOW)
    assert "ahead" not in sentence
    assert "limit on GPUs for one user" in sentence


def test_a_job_without_gpus_and_one_that_boots_its_node() -> None:
    assert waiting_sentence(replace(WAITS, gpus=Gpus(), start=0), 2, NOW).startswith("waiting for a place")
    assert waiting_sentence(replace(WAITS, state="CONFIGURING", start=0), 2, NOW).startswith("the compute node")


@pytest.mark.parametrize("code", LAUNCH_CODES)
def test_each_launch_exit_code_says_why(code: int) -> None:
    assert end_sentence("FAILED", (code, 0)) == LAUNCH_CODES[code]


@pytest.mark.parametrize(
    ("state", "exit_code", "words"),
    [
        ("OUT_OF_MEMORY", (0, 125), "memory"),
        ("TIMEOUT", (0, 0), "time limit"),
        ("NODE_FAIL", (1, 0), "node failed"),
        ("PREEMPTED", (0, 0), "priority"),
        ("CANCELLED by 0", (0, 0), "an administrator"),
        ("CANCELLED by 1000", (0, 0), "user 1000"),
        ("CANCELLED", None, "cancelled"),
        ("FAILED", (3, 0), "exit code 3"),
        ("FAILED", (0, 9), "signal 9"),
        ("SOMETHING", None, "SOMETHING"),
    ],
)
def test_an_end_says_why(state: str, exit_code: tuple[int, int] | None, words: str) -> None:
    assert words in end_sentence(state, exit_code)


def test_who_cancelled_is_named_where_it_is_known() -> None:
    assert end_sentence("CANCELLED by 1000", name="alice") == "The job was cancelled by alice."


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "sbatch: error: QOSMaxGRESPerJob sbatch: error: Batch job submission failed: Job violates …",
            "GPUs of one job",
        ),
        ("Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", "over a limit"),
        ("Invalid account or account/partition combination specified", "another account"),
        ("Access denied to requested reservation", "not yours"),
        ("something new", "something new"),
    ],
)
def test_a_refusal_says_which_limit(words: str, said: str) -> None:
    assert said in refusal_sentence(words)


def test_the_reference_page_has_every_code() -> None:
    page = REFERENCE.read_text("utf-8")
    missing = [code for code, sentence in CODES.items() if f"| `{code}` | {sentence} |" not in page]
    assert missing == []
    assert [code for code in LAUNCH_CODES if f"| {code} | {LAUNCH_CODES[code]} |" not in page] == []
