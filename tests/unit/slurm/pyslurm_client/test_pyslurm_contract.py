"""Through pyslurm Slurm says the same as through its commands, value for value.

``golden/pyslurm-25.11`` is what both said of one moment of a real Slurm 25.11.7 and pyslurm 25.11.2, as
``tests/rig/record_pyslurm.py`` wrote it down: running, waiting, ended, requeued and odd jobs, a GPU of each type, a
drained node, reservations. Its times are long ago: what is not over yet is shown by the tests on a real Slurm.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from forged_pyslurm import ForgedPyslurm
from forged_slurm import CUT, ROW, ForgedSlurm

from carme_hub.slurm.cli.client import SlurmCli
from carme_hub.slurm.cli.queue_rows import QUEUE_FIELDS
from carme_hub.slurm.command import Commands
from carme_hub.slurm.pyslurm.client import ReservationsNative, SlurmNative
from carme_hub.slurm.pyslurm.process import NativeProcess
from carme_hub.slurm.reservations import ReservationsCli
from carme_hub.slurm.submit.submitters import DirectSubmitter

GOLDEN = Path(__file__).parents[1] / "golden" / "pyslurm-25.11"


def with_all_fields(recorded: str) -> str:
    """Return what squeue said with the fields that are asked for since: none of these jobs is in an array."""
    head, *rows, _ = recorded.split(ROW + "\n")
    missing = [word for word in QUEUE_FIELDS.values() if word not in head.split(CUT)]
    lines = [CUT.join([head, *missing]), *(CUT.join([row, *("N/A" for _ in missing)]) for row in rows)]
    return "".join(f"{line}{ROW}\n" for line in lines)


@pytest.fixture
def golden(forged: ForgedSlurm, library: ForgedPyslurm) -> dict[str, list[dict[str, object]]]:
    """Both say what was recorded."""
    forged.say("squeue", with_all_fields((GOLDEN / "squeue.txt").read_text()))
    forged.say("sacct", (GOLDEN / "sacct.txt").read_bytes())
    nodes, reservations = GOLDEN / "scontrol-node.txt", GOLDEN / "scontrol-reservation.txt"
    forged.say(
        "scontrol",
        before=f"""case "$*" in
            --version) echo slurm 25.11.7 ;;
            *reservation*) cat {reservations} ;;
            *) cat {nodes} ;;
        esac""",
    )
    said: dict[str, list[dict[str, object]]] = json.loads((GOLDEN / "answers.json").read_text())
    library.say(**said)
    return said


@pytest_asyncio.fixture
async def both(forged: ForgedSlurm, golden: object) -> AsyncIterator[tuple[SlurmCli, SlurmNative]]:
    commands = Commands(prefix=str(forged.prefix), timeout=60.0)
    submitter = DirectSubmitter(commands)
    native = SlurmNative(
        cluster="lab",
        commands=commands,
        submitter=submitter,
        controller=NativeProcess(commands),
        accounting=NativeProcess(commands),
    )
    yield SlurmCli(cluster="lab", commands=commands, submitter=submitter), native
    await native.close()


async def test_jobs_are_the_same(both: tuple[SlurmCli, SlurmNative]) -> None:
    by_command, through_library = [(await client.snapshot()).jobs for client in both]
    assert through_library == by_command
    assert len(by_command) > 10
    name, user = next((job.name, job.user) for job in by_command.values() if job.gpus)
    found = [await client.find(name, user) for client in both]
    assert found[0] == found[1] != ()


async def test_nodes_are_the_same(both: tuple[SlurmCli, SlurmNative]) -> None:
    by_command, through_library = [await client.nodes() for client in both]
    assert through_library == by_command
    assert {type_ for node in by_command for type_ in node.gpus_used} > {"a100", "1g.10gb"}
    assert not all(node.usable for node in by_command)


async def test_records_are_the_same(
    both: tuple[SlurmCli, SlurmNative], golden: dict[str, list[dict[str, object]]]
) -> None:
    names = {str(words["name"]) for words in golden["records"]}
    for name in names:
        submitted = min(words["submit_time"] for words in golden["records"])  # type: ignore[type-var]
        by_command, through_library = [await client.records(name, "alice", float(submitted)) for client in both]  # type: ignore[arg-type]
        assert through_library == tuple(sorted(by_command, key=lambda record: (record.submitted, record.id)))
        assert by_command
    assert "carme-requeued" in names


async def test_reservations_are_the_same(both: tuple[SlurmCli, SlurmNative]) -> None:
    native = both[1]
    by_command = await ReservationsCli(native._commands).show()
    through_library = await ReservationsNative(native._commands, native._controller).show()
    assert through_library == by_command
    assert {flag for each in by_command for flag in each.flags} > {"MAINT", "IGNORE_JOBS", "ANY_NODES"}
    assert any(each.gpus for each in by_command)
    assert any(each.licenses for each in by_command)
    assert {each.state for each in by_command} == {"ACTIVE", "INACTIVE"}
