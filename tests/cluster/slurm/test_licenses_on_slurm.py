"""Where GPUs are counted by licenses, a booking is protected against others' jobs, and not against other bookings."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest
from slurm_parts import CommandsOfTheHub, hub_client, spec, submitter

from carme_hub.booking.calendar import BookingRequest, Calendar, RequestedTime, Supply
from carme_hub.booking.reconcile.reconciler import ReservationReconciler
from carme_hub.domain.calendar.bookable_nodes import inventory_of
from carme_hub.domain.calendar.capacity import Need
from carme_hub.domain.calendar.licenses import license_argument, license_problems
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import Reservation, State
from carme_hub.domain.calendar.slots import names_for
from carme_hub.domain.cluster.jobs import Snapshot
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.sessions.session import Request
from carme_hub.sandbox import Cluster
from carme_hub.sandbox.sandbox import Sandbox
from carme_hub.sandbox.slurm.files import job_submit
from carme_hub.slurm.reservations import ReservationsCli, licenses_in_slurm
from carme_hub.store.engine import CarmeStore
from carme_hub.store.ledger.writes import LedgerStore
from carme_hub.store.reservations import ReservationStore

LICENSES = {"a100": "gpu_a100"}
WAIT = "#!/bin/sh\nsleep 300\n"


class Site:
    """A cluster whose calendar keeps a100 by licenses, on a separate database."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.commands = CommandsOfTheHub(cluster)
        self.slurm = ReservationsCli(self.commands)
        engine = CarmeStore(url=f"sqlite:///{folder}/carme.sqlite").open()
        self.store = ReservationStore(LedgerStore(engine), licenses=LICENSES)
        self.keeper = ReservationReconciler(
            *(self.store, self.slurm, "lab"), clock=time.time, members=lambda _: [], jobs=lambda: Snapshot(0, 0, {})
        )

    async def book(self, owner: str, start: float = 0, hours: float = 0.5) -> Reservation:
        """Book four a100 from so many hours on."""
        nodes = await hub_client(self.cluster).nodes()
        supply = Supply([each for each in inventory_of(nodes, shards_kept_off=True) if each.type == "a100"])
        begin = int(time.time() + start * 3600)
        period = Period(begin, begin + int(hours * 3600))
        calendar = Calendar(self.store, "lab", lambda: supply, time.time)
        (made,) = await calendar.book(
            BookingRequest(owner, "physics", "Work", Need("a100", 2, 2), [RequestedTime(period)])
        )
        return made

    async def booked(self, owner: str) -> Reservation:
        """Book them from now on, and have Slurm keep them."""
        made = await self.book(owner)
        assert (await self.keeper.once()).refused == {}
        assert (await self.keeper.once()).equal
        return made

    async def released(self, booked: Reservation) -> None:
        with self.store.transaction("lab") as writes:
            now = writes.get(booked.id)
            assert now is not None
            writes.save(now.in_state(State.RELEASED, time.time(), actor=booked.owner))
        assert (await self.keeper.once()).refused == {}

    async def session(self, user: str, inside: Reservation | None, way: str = "direct") -> int:
        """Start a job as the hub does for a session with four a100."""
        gpus = Gpus("a100", 4)
        names = names_for(inside, gpus.count, ()) if inside else ""
        request = Request("a100", "default", gpus=gpus, account="physics", reservation=names)
        licenses = license_argument(request, LICENSES)
        extra: Mapping[str, str] = {"licenses": licenses} if licenses else {}
        job = spec(user, gpus=gpus, account="physics", reservation=names, extra=extra)
        submit_client = submitter(self.cluster, way, self.commands)
        try:
            return await submit_client.submit(job)
        finally:
            await submit_client.close()

    def waits_for_licenses(self, job: int) -> bool:
        return "Licenses" in self.cluster.run("squeue", "-h", "-j", str(job), "-o", "%r").stdout


@pytest.fixture
async def site(quiet: Cluster, tmp_path: Path) -> AsyncIterator[Site]:
    found = Site(quiet, tmp_path)
    yield found
    quiet.cancel_all()
    end = time.monotonic() + 30
    while there := await found.slurm.show():  # a job that is ending keeps its reservation
        assert time.monotonic() < end, there
        for each in there:
            quiet.run("scontrol", "delete", f"reservationname={each.name}", check=False)


@pytest.fixture
def counted(quiet: Cluster) -> Iterator[None]:
    """All jobs name licenses, by the site's job_submit script."""
    script = quiet.state / "etc/job_submit.lua"
    before = script.read_text()
    after = job_submit("a100").replace("local LICENSES = {}", 'local LICENSES = { a100 = "gpu_a100" }', 1)
    assert after != job_submit("a100")
    script.write_text(after)
    Sandbox(quiet.state).restart("slurmctld")
    yield
    script.write_text(before)
    Sandbox(quiet.state).restart("slurmctld")


async def test_bookings_start_at_once_and_others_wait_until_a_release(site: Site) -> None:
    cluster = site.cluster
    nodes = await hub_client(cluster).nodes()
    gpus = {"a100": sum(node.gpus.get("a100", 0) for node in nodes)}
    assert license_problems(LICENSES, await licenses_in_slurm(site.commands), gpus) == ()
    alice, bob = await site.booked("alice"), await site.booked("bob")
    there = {each.name: each for each in await site.slurm.show()}
    assert {name: dict(each.licenses) for name, each in there.items()} == {
        name: {"gpu_a100": 4} for each in (alice, bob) for name in each.names()
    }
    other = await site.session("ada", None, way="rest")
    cluster.wait_for(lambda: site.waits_for_licenses(other), within=30)
    mine = await site.session("alice", alice)
    cluster.wait_job(mine, "RUNNING", within=30)
    # What Slurm would count twice, had the first named it.
    cluster.wait_job(await site.session("bob", bob), "RUNNING", within=30)
    assert cluster.job_state(other) == "PENDING"
    cluster.run("scancel", str(mine))
    cluster.wait_for(lambda: cluster.job_state(mine) == "CANCELLED")
    cluster.wait_for(lambda: not cluster.run("squeue", "-h", "-t", "completing").stdout.strip())
    assert cluster.job_state(other) == "PENDING", "what is free in a booking is its owner's"
    await site.released(alice)
    cluster.wait_job(other, "RUNNING", within=60)


async def test_bookings_that_slurm_adds_up_needlessly_are_kept(site: Site) -> None:
    for start in (1, 3):
        await site.book("alice", start, 1)
    assert (await site.keeper.once()).refused == {}
    await site.book("bob", 0.5, 5)  # with each of them eight, and never twelve
    (words,) = (await site.keeper.once()).refused.values()
    assert "Invalid license specification" in words
    assert (await site.keeper.once()).refused == {}
    assert (await site.keeper.once()).equal
    assert len(await site.slurm.show()) == 3


@pytest.mark.usefixtures("counted")
async def test_jobs_without_licenses_are_counted_by_the_sites_script(site: Site) -> None:
    cluster, booked = site.cluster, await site.booked("alice")
    (name,) = booked.names()

    def licenses(job: int) -> str:
        return cluster.run("squeue", "-h", "-j", str(job), "-o", "%W").stdout.strip()

    asked = {
        "gpu_a100:4": ("-N2", "--gres=gpu:2"),
        "gpu_a100:3": ("--gpus=a100:3", "--licenses=gpu_a100:1"),
        "gpu_a100:2,gpu_h100:1": ("-n2", "--gpus-per-task=a100:1", "--licenses=gpu_h100"),
    }
    jobs = {output: cluster.sbatch(*options, "--mem=50", user="bob", script=WAIT) for output, options in asked.items()}
    assert {output: licenses(job) for output, job in jobs.items()} == {output: output for output in asked}
    inside = ("--mem=50", "-A", "physics", f"--reservation={name}", "-t", "5")
    mine = cluster.sbatch("--gres=gpu:a100:1", "--licenses=gpu_a100:1", *inside, user="alice", script=WAIT)
    cluster.wait_job(mine, "RUNNING", within=30)
    assert licenses(mine) == "(null)"
    for options, words in ((("--gres=gpu:a100:5", *inside), "has 4 of these"), (("-n9", "--gres=gpu:1"), "--nodes")):
        refused = cluster.run("sbatch", *options, "--wrap", "sleep 9", user="alice", check=False)
        assert words in refused.stderr, refused
    waiting = cluster.sbatch("--gres=gpu:a100:4", "--hold", "--mem=50", user="bob", script=WAIT)
    cluster.run("scontrol", "update", f"jobid={waiting}", "licenses=", user="bob", check=False)
    assert licenses(waiting) == "gpu_a100:4"
