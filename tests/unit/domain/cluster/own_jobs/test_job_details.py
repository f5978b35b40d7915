"""Names of output files are those that Slurm makes of its patterns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from carme_hub.domain.cluster.own_jobs.details import JobDetails, expanded, output_path

JOB = JobDetails(123, "alice", "train", folder="/home/alice/run", first_node="node1.site")
TASK = replace(JOB, id=130, array=123, task="7")


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("out-%j.txt", "out-123.txt"),
        ("%x.%u.%N", "train.alice.node1"),
        ("%5j-%12j", "00123-0000000123"),
        ("%A_%a", "123_4294967294"),
        ("100%%", "100%"),
        ("%q", "%q"),
        (r"\%j", "%j"),
    ],
)
def test_patterns_of_a_job(pattern: str, name: str) -> None:
    assert expanded(pattern, JOB) == name


def test_patterns_of_a_task() -> None:
    assert expanded("%A_%a %3a %b %j", TASK) == "123_7 007 7 130"


def test_where_output_and_error_messages_go() -> None:
    assert output_path(JOB) == "/home/alice/run/slurm-123.out"
    assert output_path(TASK) == "/home/alice/run/slurm-123_7.out"
    assert output_path(JOB, "error") == "/home/alice/run/slurm-123.out"
    own = replace(JOB, output="logs/%j.out", error="/scratch/%x.err")
    assert output_path(own) == "/home/alice/run/logs/123.out"
    assert output_path(own, "error") == "/scratch/train.err"


def test_nothing_is_read_where_there_is_no_file() -> None:
    assert output_path(replace(JOB, output="/dev/null")) == ""
    assert output_path(replace(JOB, folder="")) == ""
