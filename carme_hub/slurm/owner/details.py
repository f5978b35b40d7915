"""What squeue says of one job beyond the queue's columns. The separator is a random word, which no name contains."""

from __future__ import annotations

from carme_hub.domain.cluster.own_jobs.details import JobDetails
from carme_hub.domain.cluster.tres import hosts_of, minutes_of
from carme_hub.errors import SlurmUnreachable
from carme_hub.slurm.cli.queue_rows import lenient

FIELDS = (
    "JobID",
    "UserName",
    "Name",
    "State",
    "ArrayJobID",
    "ArrayTaskID",
    "BatchFlag",
    "Command",
    "WorkDir",
    "STDOUT",
    "STDERR",
    "STDIN",
    "Account",
    "Partition",
    "QOS",
    "Reservation",
    "TimeLimit",
    "NumNodes",
    "NumTasks",
    "cpus-per-task",
    "NumCPUs",
    "MinMemory",
    "Feature",
    "Licenses",
    "Nice",
    "Requeue",
    "OverSubscribe",
    "Dependency",
    "NodeList",
    "tres-per-node",
    "tres-per-job",
    "tres-per-socket",
    "tres-per-task",
)
_NOTHING = frozenset({"", "N/A", "(null)", "None", "NONE"})
#: squeue's fields and sbatch's options; ``--gres`` names the kind of a resource, the others are of GPUs.
_TRES = {
    "tres-per-node": "gres",
    "tres-per-job": "gpus",
    "tres-per-socket": "gpus-per-socket",
    "tres-per-task": "gpus-per-task",
}


def format_of(cut: str) -> str:
    """Return the value of squeue's ``-O`` for a separator."""
    return ",".join(f"{field}:{cut}" for field in FIELDS)


def read(text: str, cut: str) -> list[JobDetails]:
    """Parse the answer.

    Raises:
        SlurmUnreachable: a row cannot be parsed.
    """
    words = text.split(cut)
    if words.pop() not in ("\n", "") or len(words) % len(FIELDS):
        raise SlurmUnreachable(f"squeue: the answer cannot be understood: {text[:80]!r}")
    found = []
    for at in range(0, len(words), len(FIELDS)):
        row = {field: word.removeprefix("\n") if field == "JobID" else word for field, word in zip(FIELDS, words[at:])}  # noqa: B905
        try:
            found.append(_job(row))
        except ValueError as error:
            raise SlurmUnreachable(f"squeue: the answer cannot be understood: {error}") from error
    return found


def _job(row: dict[str, str]) -> JobDetails:
    known = {field: "" if word in _NOTHING else word for field, word in row.items()}
    in_array = known["ArrayTaskID"] != ""
    memory = known["MinMemory"]
    hosts: tuple[str, ...] = lenient(hosts_of, (), known["NodeList"])
    return JobDetails(
        id=int(row["JobID"]),
        user=row["UserName"],
        name=row["Name"],
        state=row["State"],
        array=lenient(int, 0, row["ArrayJobID"]) if in_array else 0,
        task=known["ArrayTaskID"],
        batch=row["BatchFlag"] == "1",
        command=known["Command"],
        folder=known["WorkDir"],
        output=known["STDOUT"],
        error=known["STDERR"],
        input=known["STDIN"],
        account=known["Account"],
        partition=known["Partition"],
        qos=known["QOS"],
        reservation=known["Reservation"],
        minutes=lenient(minutes_of, 0, known["TimeLimit"]),
        nodes=known["NumNodes"],
        tasks=lenient(int, 0, known["NumTasks"]),
        cpus_per_task=lenient(int, 0, known["cpus-per-task"]),
        cpus=lenient(int, 0, known["NumCPUs"]),
        memory="" if memory == "0" else memory.removesuffix("c"),
        memory_per_cpu=memory.endswith("c"),
        constraint=known["Feature"],
        licenses=known["Licenses"],
        nice=lenient(int, 0, known["Nice"]),
        requeue=row["Requeue"] == "1",
        exclusive=row["OverSubscribe"] == "NO",
        dependency=known["Dependency"],
        first_node=hosts[0] if hosts else "",
        tres=tuple((option, value) for field, option in _TRES.items() if (value := _tres(option, known[field]))),
    )


def _tres(option: str, text: str) -> str:
    """Return ``gres:gpu:a100:2``, or as newer releases have it ``gres/gpu:a100=2``, as the option's value."""
    parts = []
    for part in text.split(","):
        if not part.startswith("gres"):  # 24.11 has CPUs of a task there too
            continue
        word = part.removeprefix("gres:").removeprefix("gres/").replace("=", ":")
        parts.append(word if option == "gres" else word.removeprefix("gpu:"))
    return ",".join(parts)
