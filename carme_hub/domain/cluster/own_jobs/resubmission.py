"""How a job is submitted again: the same script, the same options, as far as Slurm knows them. Pure.

Slurm does not keep the command line of sbatch as words, and nothing of the shell's environment. So options are made of
what the job has in the queue, or in accounting, and are shown before anything is submitted; what is not known is said.
Options in the script's own ``#SBATCH`` lines hold where there is none of the same name.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from carme_hub.domain.cluster.jobs import JOB_NAME_PREFIX
from carme_hub.errors import Refused

from .details import JobDetails
from .targets import is_task_list

#: Bytes of a script that is submitted again; Slurm's own limit is 4 MiB.
LONGEST_SCRIPT = 1 << 20
_WRAPPED = "# This script was created by sbatch --wrap."
#: sbatch's options that have no value, or only one after "=".
_SHORT_FLAGS = frozenset("HkOQsvWhV")
_FLAGS = frozenset(
    f"--{name}"
    for name in (
        *(
            "contiguous",
            "disable-stdout-job-summary",
            "exclusive",
            "get-user-env",
            "help",
            "hold",
            "ignore-pbs",
            "nice",
        ),
        *(
            "no-kill",
            "no-requeue",
            "overcommit",
            "oversubscribe",
            "parsable",
            "propagate",
            "quiet",
            "reboot",
            "requeue",
        ),
        *("share", "spread-job", "test-only", "use-min-nodes", "verbose", "version", "wait"),
    )
)
_NO_VALUE = frozenset({"", "N/A", "(null)", "None", "Unknown"})


class CannotSubmitAgain(Refused):
    """The job cannot be submitted again; the message says why."""

    reason = "cannot-submit-again"


@dataclass(frozen=True, slots=True)
class Resubmission:
    """A job as it would be submitted again.

    Attributes:
        options: values by sbatch's long options; "" = an option without a value.
        arguments: of the script. notes: what is not as it was, or not known, in sentences.
    """

    user: str
    script: str
    options: Mapping[str, str]
    arguments: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def with_tasks(self, tasks: str) -> Resubmission:
        """Return it for these tasks of its array.

        Raises:
            CannotSubmitAgain: they are no list of tasks.
        """
        if not is_task_list(tasks.partition("%")[0]) or not re.fullmatch(
            r"(?:%\d{1,7})?", tasks[len(tasks.partition("%")[0]) :]
        ):
            raise CannotSubmitAgain("Tasks are numbers and ranges, such as 0-9 or 3,5-8%2.", reason="wrong-tasks")
        return replace(self, options={**self.options, "array": tasks})

    @property
    def words(self) -> list[str]:
        """The command line, for people."""
        return [*option_words(self.options), *self.arguments]


def option_words(options: Mapping[str, str]) -> list[str]:
    """Return options as sbatch takes them."""
    return [f"--{name}={value}" if value else f"--{name}" for name, value in options.items()]


def resubmission(job: JobDetails, script: str, *, from_accounting: bool = False) -> Resubmission:
    """Return how a job is submitted again.

    Args:
        from_accounting: what is known of the job is what accounting has kept, which is less.

    Raises:
        CannotSubmitAgain: it cannot be.
    """
    if job.name.startswith(JOB_NAME_PREFIX):
        raise CannotSubmitAgain("It belongs to a session of the hub. Start a session, or repeat its run.")
    if not job.batch:
        raise CannotSubmitAgain("It was started by srun or salloc, which have no script. Only sbatch's jobs have one.")
    if not script.startswith("#!"):
        raise CannotSubmitAgain("Slurm does not have its script any more.")
    if len(script.encode()) > LONGEST_SCRIPT or "\0" in script:
        raise CannotSubmitAgain("Its script is too long to be submitted here. Use sbatch in a terminal.")
    notes = [
        "Variables that were set in the shell from which it was submitted are not known, so it starts without them: "
        "modules and environments must be loaded by the script."
    ]
    options = {
        name: value for name, value in _options(job, script, notes, from_accounting).items() if value is not None
    }
    arguments = _arguments(job, script, notes)
    return Resubmission(job.user, script, options, arguments, tuple(notes))


def _options(job: JobDetails, script: str, notes: list[str], from_accounting: bool) -> dict[str, str | None]:
    found: dict[str, str | None] = {"job-name": job.name or None}
    for name in ("account", "partition", "qos", "reservation", "constraint", "licenses"):
        value = getattr(job, name)
        if value not in _NO_VALUE:
            found[name] = value
    if job.minutes:
        found["time"] = str(job.minutes)
    # What accounting knows of the layout is a sum; the script's own words are better.
    if not from_accounting or not _has(script, "nodes", "N"):
        found["nodes"] = job.nodes or None
    if not from_accounting or not _has(script, "ntasks", "n", "cpus-per-task", "c", "ntasks-per-node"):
        found["ntasks"] = str(job.tasks) if job.tasks else None
        found["cpus-per-task"] = str(job.cpus_per_task) if job.cpus_per_task else None
    if job.memory not in _NO_VALUE and not (from_accounting and _has(script, "mem", "mem-per-cpu", "mem-per-gpu")):
        found["mem-per-cpu" if job.memory_per_cpu else "mem"] = job.memory
    if not (from_accounting and _has(script, "gres", "gpus", "G", "gpus-per-node", "gpus-per-task")):
        found.update(job.tres)
    if job.nice:
        found["nice"] = str(job.nice)
    if job.exclusive:
        found["exclusive"] = ""
    if not from_accounting:
        found["requeue" if job.requeue else "no-requeue"] = ""
    if job.folder.startswith("/"):
        found["chdir"] = job.folder
    for name in ("output", "error", "input"):
        value = getattr(job, name)
        if value in _NO_VALUE or (name, value) in (("input", "/dev/null"), ("error", job.output)):
            continue
        pattern = with_patterns(value, job)
        if name != "output" or pattern not in _default_outputs(job):
            found[name] = pattern
    if job.array:
        found["array"] = job.task or None
        notes.append("Which tasks its array had is not kept once they have started. Check the tasks below.")
    if job.dependency not in _NO_VALUE:
        notes.append("It does not wait for the jobs that the first one waited for.")
    if from_accounting:
        notes.append(
            "Slurm has forgotten the job and knows of it what accounting keeps: options of the command line for "
            "output files, features, licenses and mail are not known."
        )
    else:
        notes.append("Options of the command line for mail are not known.")
    return found


def with_patterns(path: str, job: JobDetails) -> str:
    """Return a file's name with the job's number replaced by its pattern, so that the new job has a file of its own."""
    name = posixpath.basename(path)
    if job.array and job.task.isdigit():
        name = re.sub(rf"(?<!\d){job.array}_{job.task}(?!\d)", "%A_%a", name)
    for number, pattern in ((job.array, "%A"), (job.id, "%j")):
        if number:
            name = re.sub(rf"(?<![\d%]){number}(?!\d)", pattern, name)
    return posixpath.join(posixpath.dirname(path), name)


def _default_outputs(job: JobDetails) -> Sequence[str]:
    return [posixpath.join(job.folder, name) for name in ("slurm-%j.out", "slurm-%A_%a.out", "slurm-%A_4294967294.out")]


def _has(script: str, *options: str) -> bool:
    """Return whether the script's ``#SBATCH`` lines have one of these options."""
    for line in script.splitlines():
        words = line.split()
        if words and words[0] == "#SBATCH":
            for word in words[1:]:
                name = word.lstrip("-").partition("=")[0]
                if word.startswith("-") and (name in options or (name[:1] in options and not word.startswith("--"))):
                    return True
        elif line.strip() and not line.lstrip().startswith("#"):
            return False
    return False


def _arguments(job: JobDetails, script: str, notes: list[str]) -> tuple[str, ...]:
    if _WRAPPED in script:
        return ()
    path, *shown = job.command.split() if job.command not in _NO_VALUE else ("",)
    words = script_arguments(job, script, path) if job.submit_line else None
    if words is None:
        words = tuple(shown)
        if not words:
            notes.append("Arguments that the script may have had are not known.")
    if words:
        notes.append("Arguments of the script are as Slurm keeps them; one with a blank in it becomes two.")
    return words


def script_arguments(job: JobDetails, script: str, path: str) -> tuple[str, ...] | None:
    """Return what follows the script in the line by which a job was submitted; None if that is not certain.

    Slurm keeps the line without its quotes, so that a value with a blank could be taken for the script.
    """
    words = job.submit_line.split()[1:]
    named = _has(script, "job-name", "J") or any(word.startswith(("-J", "--job-name")) for word in words)
    at = 0
    while at < len(words) and words[at].startswith("-"):
        word = words[at]
        alone = "=" in word or word in _FLAGS if word.startswith("--") else len(word) > 2 or word[1:] in _SHORT_FLAGS
        at += 1 if alone else 2
    if at >= len(words):
        return ()  # it was read from a pipe
    name = posixpath.basename(words[at])
    if name != (posixpath.basename(path) if path else job.name) and (path or not named):
        return None
    return tuple(words[at + 1 :])
