"""Slurm's reservations become equal to the bookings, whatever happened to them, and keep GPUs for the bookers."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from slurm_parts import hub_client, hub_reservations

from carme_hub.booking.calendar import BookingRequest, Calendar, RequestedTime, Supply
from carme_hub.booking.reconcile.reconciler import ReservationReconciler
from carme_hub.domain.calendar.bookable_nodes import inventory_of
from carme_hub.domain.calendar.capacity import Need
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import State
from carme_hub.domain.calendar.slurm_reservations import Create, Delete, SlurmReservation, plan
from carme_hub.errors import SlurmUnreachable
from carme_hub.sandbox import Cluster
from carme_hub.sandbox.sandbox import Sandbox
from carme_hub.store.engine import CarmeStore
from carme_hub.store.ledger.writes import LedgerStore
from carme_hub.store.reservations import ReservationStore

HOUR = 3600
WAIT = "#!/bin/sh\nsleep 300\n"


class Slurm:
    """The reservations of a cluster, reconciled as by the hub, whose user is an Operator."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.cli = hub_reservations(cluster)

    async def reconcile(self, wanted: Sequence[SlurmReservation], gone: Collection[str] = ()) -> list[str]:
        """Take the due steps and return Slurm's refusals."""
        steps = plan(wanted, await self.cli.show(), obsolete=gone, now=int(time.time()))
        return [words for step in steps if (words := await self.cli.take(step))]

    async def steps(self, wanted: Sequence[SlurmReservation], gone: Collection[str] = ()) -> int:
        """Return how many steps would be due now."""
        return len(plan(wanted, await self.cli.show(), obsolete=gone, now=int(time.time())))

    async def clear(self) -> None:
        """Delete all reservations, once their jobs have ended."""
        end = time.monotonic() + 60
        while there := [each.name for each in await self.cli.show()]:
            assert time.monotonic() < end, there
            for name in there:
                self.cluster.run("scontrol", "delete", f"reservationname={name}", check=False)


@pytest.fixture
async def slurm(quiet: Cluster) -> AsyncIterator[Slurm]:
    found = Slurm(quiet)
    yield found
    quiet.cancel_all()
    await found.clear()
    await found.cli.close()


@pytest.fixture
def saved(slurm: Slurm) -> None:
    """The controller has saved its state: otherwise a killed one would restore jobs of earlier tests.

    A job that ended after the last save is running again then, and its reservation cannot be deleted, until its node
    has registered.
    """
    Sandbox(slurm.cluster.state).restart("slurmctld")


@pytest.fixture
async def by_gpu(slurm: Slurm) -> None:
    """Only where Slurm reserves single GPUs: 22.05 does not."""
    if "not supported with reservations" in await slurm.cli.take(Create(booked(gpus={"a100": 1}, cpus=1))):
        pytest.skip("this Slurm reserves whole nodes only")
    assert await slurm.cli.take(Delete("carme-a1")) == ""


def booked(start: int = HOUR, length: int = HOUR, name: str = "carme-a1", **more: object) -> SlurmReservation:
    """Node 2 for alice, from so many seconds on."""
    begin = int(time.time()) + start
    plain = SlurmReservation(name, Period(begin, begin + length), frozenset({"node2"}), users=frozenset({"alice"}))
    return replace(plain, **more)


async def test_a_booking_is_in_slurm_after_one_pass_and_the_next_one_does_nothing(slurm: Slurm) -> None:
    wanted = [
        booked(),
        booked(2 * HOUR, name="carme-a2", nodes=frozenset({"node1", "node4"}), accounts=frozenset({"physics"})),
    ]
    assert await slurm.reconcile(wanted) == []
    assert await slurm.steps(wanted) == 0
    there = {each.name: each for each in await slurm.cli.show()}
    assert there["carme-a1"].users == {"alice"}
    assert there["carme-a2"].nodes == {"node1", "node4"}
    assert all(abs(there[each.name].period.start - each.period.start) <= 1 for each in wanted)


async def test_changes_by_hand_are_repaired_and_foreign_reservations_stay(slurm: Slurm) -> None:
    wanted = [booked()]
    await slurm.reconcile(wanted)
    run = slurm.cluster.run
    run("scontrol", "create", "reservation", "reservationname=by-hand", "starttime=now+600", "duration=5", "users=root",
        "nodes=node3")  # fmt: skip
    for words in (
        ["update", "reservationname=carme-a1", "users=bob"],
        ["update", "reservationname=carme-a1", "endtime=now+90000"],
        ["delete", "reservationname=carme-a1"],
    ):
        run("scontrol", *words)
        assert await slurm.steps(wanted) == 1, words
        assert await slurm.reconcile(wanted) == []
        assert await slurm.steps(wanted) == 0
    moved = [booked(3 * HOUR, nodes=frozenset({"node1"}), users=frozenset({"alice", "bob"}))]
    assert await slurm.reconcile(moved) == []
    (there,) = [each for each in await slurm.cli.show() if each.ours]
    assert (there.nodes, there.users) == (frozenset({"node1"}), {"alice", "bob"})
    assert await slurm.reconcile([], gone=["carme-a1"]) == []
    assert [each.name for each in await slurm.cli.show()] == ["by-hand"]


async def test_during_it_the_booker_starts_and_others_wait_until_the_release(slurm: Slurm) -> None:
    wanted = [booked(0, users=frozenset({"bob"}))]
    assert await slurm.reconcile(wanted) == []
    sbatch = slurm.cluster.sbatch
    other = sbatch("--gres=gpu:a100:4", "-w", "node2", "--mem=50", "-t", "30", user="alice", script=WAIT)
    mine = sbatch(
        "--gres=gpu:a100:4", "-w", "node2", "--mem=50", "-t", "30", "--reservation=carme-a1", user="bob", script=WAIT
    )
    slurm.cluster.wait_job(mine, "RUNNING", within=30)
    assert slurm.cluster.job_state(other) == "PENDING"
    assert "in use" in (await slurm.reconcile([], gone=["carme-a1"]))[0]
    slurm.cluster.run("scancel", str(mine))
    slurm.cluster.wait_for(lambda: slurm.cluster.job_state(mine) == "CANCELLED")
    slurm.cluster.wait_for(lambda: not slurm.cluster.run("squeue", "-h", "-t", "completing").stdout.strip())
    assert await slurm.reconcile([], gone=["carme-a1"]) == []
    slurm.cluster.wait_job(other, "RUNNING", within=60)


@pytest.mark.usefixtures("saved")
async def test_a_controller_that_was_down_gets_the_reservations_when_it_is_back(slurm: Slurm) -> None:
    wanted = [booked()]
    slurm.cluster.kill("slurmctld")
    with pytest.raises(SlurmUnreachable):
        await slurm.reconcile(wanted)
    Sandbox(slurm.cluster.state).restart("slurmctld")
    assert await slurm.reconcile(wanted) == []
    assert await slurm.steps(wanted) == 0


@pytest.mark.usefixtures("saved")
async def test_bookings_are_kept_whatever_happens_to_slurm(slurm: Slurm, tmp_path: Path) -> None:
    client = hub_client(slurm.cluster)
    nodes = await client.nodes()
    await client.close()
    store = ReservationStore(LedgerStore(CarmeStore(url=f"sqlite:///{tmp_path}/carme.sqlite").open()))
    calendar = Calendar(store, "lab", lambda: Supply(inventory_of(nodes), by_node=True), time.time)
    reconciler = ReservationReconciler(store, slurm.cli, "lab", clock=time.time, members=lambda _: ["bob"])
    start = int(time.time()) + HOUR
    times = [RequestedTime(Period(start + day * 24 * HOUR, start + day * 24 * HOUR + HOUR)) for day in range(3)]
    booked = await calendar.book(
        BookingRequest("alice", "physics", "A class", Need("a100", 1, 6), times, group="course")
    )
    names = {name for each in booked for name in each.names()}

    async def kept() -> set[str]:
        return {each.name for each in await slurm.cli.show() if each.users == {"alice", "bob"}}

    assert (await reconciler.once()).refused == {}
    assert await kept() == names
    assert {place.node for place in booked[0].places} == {"node1", "node2"}
    slurm.cluster.run("scontrol", "delete", f"reservationname={min(names)}")
    slurm.cluster.kill("slurmctld")
    with store.transaction("lab") as writes:  # the service was killed here, before it had told Slurm
        writes.save(booked[2].in_state(State.CANCELLED, time.time(), actor="alice"))
    assert (await reconciler.once()).unreachable
    Sandbox(slurm.cluster.state).restart("slurmctld")
    assert (await reconciler.once()).refused == {}
    assert (await reconciler.once()).equal
    assert await kept() == names - set(booked[2].names())


async def test_single_gpus_are_kept_and_the_others_of_the_node_stay_free(slurm: Slurm, by_gpu: None) -> None:
    wanted = [booked(0, gpus={"a100": 2}, cpus=4, users=frozenset({"bob"}))]
    assert await slurm.reconcile(wanted) == []
    assert await slurm.steps(wanted) == 0
    sbatch = slurm.cluster.sbatch
    too_many = sbatch("--gres=gpu:a100:3", "-w", "node2", "--mem=50", "-t", "30", user="alice", script=WAIT)
    rest = sbatch("--gres=gpu:a100:2", "-w", "node2", "--mem=50", "-t", "30", user="alice", script=WAIT)
    mine = sbatch(
        "--gres=gpu:a100:2", "-w", "node2", "--mem=50", "-t", "30", "--reservation=carme-a1", user="bob", script=WAIT
    )
    for job in (rest, mine):
        slurm.cluster.wait_job(job, "RUNNING", within=30)
    assert slurm.cluster.job_state(too_many) == "PENDING"


async def test_two_bookings_of_one_node_fit_and_a_third_does_not(slurm: Slurm, by_gpu: None) -> None:
    wanted = [booked(name=f"carme-{n}", gpus={"a100": 2}, cpus=2) for n in range(2)]
    assert await slurm.reconcile(wanted) == []
    (refused,) = await slurm.reconcile([*wanted, booked(name="carme-3", gpus={"a100": 1}, cpus=1)])
    assert "busy" in refused
