"""A job is submitted again as it was, as far as Slurm knows it; what is not known is said, and some cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from carme_hub.domain.cluster.own_jobs.details import JobDetails
from carme_hub.domain.cluster.own_jobs.resubmission import (
    CannotSubmitAgain,
    option_words,
    resubmission,
    script_arguments,
    with_patterns,
)

SCRIPT = "#!/bin/bash\n#SBATCH --mem=3G\n#SBATCH -N 2\n\npython train.py\n"
JOB = JobDetails(
    123, "alice", "train", command="/home/alice/train.sh fast 3", folder="/home/alice", account="physics",
    partition="gpu", qos="normal", minutes=90, nodes="2", tasks=4, cpus_per_task=3, memory="3G", requeue=True,
    output="/home/alice/slurm-123.out", tres=(("gres", "gpu:a100:2"),),
)  # fmt: skip


def test_options_are_those_that_the_job_has() -> None:
    found = resubmission(JOB, SCRIPT)
    assert found.script == SCRIPT
    assert found.arguments == ("fast", "3")
    assert option_words(found.options) == [
        *("--job-name=train", "--account=physics", "--partition=gpu", "--qos=normal", "--time=90", "--nodes=2"),
        *("--ntasks=4", "--cpus-per-task=3", "--mem=3G", "--gres=gpu:a100:2", "--requeue", "--chdir=/home/alice"),
    ]


def test_its_output_gets_a_file_of_its_own() -> None:
    assert "output" not in resubmission(JOB, SCRIPT).options, "Slurm's default"
    named = replace(JOB, output="/home/alice/logs/out-123.txt", error="/home/alice/9123.err")
    found = resubmission(named, SCRIPT).options
    assert found["output"] == "/home/alice/logs/out-%j.txt"
    assert found["error"] == "/home/alice/9123.err"
    assert with_patterns("/x/a-120_7.txt", replace(JOB, array=120, task="7")) == "/x/a-%A_%a.txt"
    assert with_patterns("/x/a-%j.txt", JOB) == "/x/a-%j.txt"


def test_what_is_not_known_is_said() -> None:
    notes = " ".join(resubmission(replace(JOB, dependency="afterok:99"), SCRIPT).notes)
    assert "Variables that were set in the shell" in notes
    assert "one with a blank in it becomes two" in notes
    assert "does not wait for the jobs" in notes


def test_of_accounting_the_scripts_own_words_are_better_than_sums() -> None:
    found = resubmission(replace(JOB, output="", requeue=False), SCRIPT, from_accounting=True)
    assert not {"nodes", "mem", "requeue", "no-requeue"} & set(found.options), "they are in the script"
    assert found.options["ntasks"] == "4"
    assert found.options["gres"] == "gpu:a100:2"
    assert any("what accounting keeps" in note for note in found.notes)


def test_tasks_of_an_array_can_be_chosen_and_nothing_else() -> None:
    found = resubmission(replace(JOB, array=123, task="3-9"), SCRIPT)
    assert found.options["array"] == "3-9"
    assert found.with_tasks("0-4,7%2").options["array"] == "0-4,7%2"
    for wrong in ("", "x", "1;2", "1 --uid=0", "%2", "1%2%3"):
        with pytest.raises(CannotSubmitAgain, match="numbers and ranges"):
            found.with_tasks(wrong)


@pytest.mark.parametrize(
    ("job", "script", "words"),
    [
        (replace(JOB, name="carme-0f9a"), SCRIPT, "belongs to a session"),
        (replace(JOB, batch=False), "", "srun or salloc"),
        (JOB, "", "does not have its script"),
        (JOB, "#!/bin/sh\n" + "x" * (1 << 20), "too long"),
        (JOB, "#!/bin/sh\n\0", "too long"),
    ],
)
def test_what_cannot_be_submitted_again_says_why(job: JobDetails, script: str, words: str) -> None:
    with pytest.raises(CannotSubmitAgain, match=words):
        resubmission(job, script)


@pytest.mark.parametrize(
    ("line", "command", "arguments"),
    [
        ("sbatch --time=9 -n2 -c 2 --exclusive --mem 3G train.sh a b", "/home/alice/train.sh", ("a", "b")),
        ("/usr/bin/sbatch -J x --hold ./train.sh", "/home/alice/train.sh", ()),
        ("sbatch --comment=two words train.sh a", "/home/alice/train.sh", None),
        ("sbatch train a", "", ("a",)),
        ("sbatch -J train other.sh a", "", ("a",)),
        ("sbatch two words a", "", None),
        ("sbatch --time=9", "", ()),
    ],
)
def test_arguments_are_what_follows_the_script_where_that_is_certain(
    line: str, command: str, arguments: tuple[str, ...] | None
) -> None:
    job = replace(JOB, command=command, submit_line=line)
    assert script_arguments(job, SCRIPT, command) == arguments
    found = resubmission(job, SCRIPT)
    assert found.arguments == (arguments or ())
    assert any("are not known" in note and "Arguments" in note for note in found.notes) is (arguments is None)


def test_a_wrapped_command_has_no_arguments() -> None:
    script = "#!/bin/sh\n# This script was created by sbatch --wrap.\n\nsleep 1\n"
    assert resubmission(replace(JOB, command="wrap x"), script).arguments == ()
