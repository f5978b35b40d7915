"""A booking through the hub is in Slurm before it starts, excludes others, is repaired, and is released."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rig.hub import Answer, Hub, wait_for
from rig.rest import Rest, wait_for_calendar

from carme_hub.domain.cluster.tres import time_of
from carme_hub.sandbox.sandbox import Sandbox

ROOT = "/services/reservations/api/v1/"
WAIT = "#!/bin/sh\nsleep 600\n"
MINUTE = 60


class Calendar:
    """The calendar of a hub, and its reservations in Slurm."""

    def __init__(self, site: Hub) -> None:
        self.site = site
        self.people = {user: Rest(site, user, ROOT) for user in ("alice", "bob", "ada")}
        wait_for_calendar(site)

    def ask(self, who: str = "alice", *, start: float, minutes: int = 15, seats: int = 2, **more: object) -> Answer:
        """Request all a100 of so many nodes: whole nodes, whatever this Slurm can reserve."""
        body = {"title": "Deep learning", "gpu_type": "a100", "gpus": 4, "seats": seats, "account": "physics"}
        times = {"start": int(start), "end": int(start) + minutes * MINUTE}
        return self.people[who].send("bookings", {**body, **times, **more})

    def book(self, who: str = "alice", **more: Any) -> dict[str, Any]:
        answer = self.ask(who, **more)
        assert answer.status == 200, answer
        (booking,) = answer.body["bookings"]
        return dict(booking)

    def one(self, booking: dict[str, Any]) -> dict[str, Any]:
        return dict(self.people["ada"].get(f"bookings/{booking['id']}"))

    def in_slurm(self) -> dict[str, str]:
        """Return the state of each reservation of ours in Slurm, by name."""
        lines = self.site.cluster.run("scontrol", "show", "reservation", "--oneliner").stdout.splitlines()
        found = [dict(word.partition("=")[::2] for word in line.split() if "=" in word) for line in lines]
        return {each["ReservationName"]: each["State"] for each in found if "ReservationName" in each}

    def wait_kept(self, booking: dict[str, Any], limit: float = 60) -> None:
        """Wait until Slurm has a complete booking, within the promised time."""
        names = set(self.one(booking)["slurm"])
        assert names
        wait_for(lambda: names <= self.in_slurm().keys(), limit, f"{names} in Slurm")

    def clear(self) -> None:
        """Cancel all bookings, and wait until Slurm has no reservation."""
        for state in ("confirmed", "pending", "draft", "active"):
            verb = "release" if state == "active" else "cancel"
            for each in self.people["ada"].get(f"bookings?state={state}")["bookings"]:
                answer = self.people["ada"].send(f"bookings/{each['id']}/{verb}", {})
                assert answer.status == 200, answer
        wait_for(lambda: not self.in_slurm(), 60, "Slurm to have no reservation")

    def held(self, booking: dict[str, Any]) -> int:
        """Return the ledger's hold for a booking, in milli-GPU-seconds."""
        database = sqlite3.connect(f"file:{self.site.demo.folder / 'carme-hub.sqlite'}?mode=ro", uri=True)
        try:
            query = "select -coalesce(sum(amount), 0) from ledger where session = ? and kind in ('hold', 'release')"
            return int(database.execute(query, (booking["id"],)).fetchone()[0])
        finally:
            database.close()


@pytest.fixture(scope="module")
def calendar(site: Hub) -> Calendar:
    return Calendar(site)


@pytest.fixture(autouse=True)
def empty(calendar: Calendar, site: Hub) -> Iterator[None]:
    yield
    site.stop_all()
    site.cluster.cancel_all()
    calendar.clear()


def service(site: Hub) -> int:
    """Return the process of this hub's reservations service, 0 for none."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode().split("\0")
            here = str(site.demo.folder) in (folder / "environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if here and "carme_hub.services.reservations" in words:
            return int(folder.name)
    return 0


def test_others_wait_while_the_booker_starts_at_once_and_continue_after_the_release(
    calendar: Calendar, site: Hub
) -> None:
    cluster = site.cluster
    booked = calendar.book(start=time.time() + 75)
    assert booked["state"] == "confirmed"
    assert calendar.held(booked) == 8 * 15 * MINUTE * 1000
    calendar.wait_kept(booked)
    assert time.time() < booked["start"], "Slurm knows of it before it starts"
    other = cluster.sbatch("--gres=gpu:a100:4", "--mem=50", "-t", "30", user="bob", script=WAIT)
    wait_for(lambda: calendar.one(booked)["state"] == "active", 120, "its start")

    site.start_server("alice", profile="a100", gpus=4, time_minutes=120)
    assert cluster.job_state(other) == "PENDING"
    rows = [job for job in site.jobs() if job["user"] == "alice"]
    (line,) = cluster.run("squeue", "-h", "-j", rows[0]["id"], "-O", "reservation:200,EndTime").stdout.splitlines()
    assert line.split()[0].split(",")[0] in booked["slurm"]
    assert int(time_of(line.split()[1])) <= booked["end"], "its time limit ends with the booking"
    wait_for(lambda: calendar.one(booked)["used"] > 0, 60, "the booking to be used")
    session = {"id": rows[0]["name"].removeprefix("carme-")}
    assert calendar.held(session) > 0
    assert calendar.held(booked) + calendar.held(session) <= 8 * 15 * MINUTE * 1000, "nothing is held twice"

    site.stop_server("alice")
    cluster.wait_for(lambda: not [row for row in cluster.squeue("-t", "R,CG") if row["user"] == "alice"], within=60)
    answer = calendar.people["alice"].send(f"bookings/{booked['id']}/release", {"reason": "done"})
    assert answer.status == 200, answer
    assert answer.body["bookings"][0]["state"] == "released"
    cluster.wait_job(other, "RUNNING", within=60)
    wait_for(lambda: calendar.held(booked) == 0, 60, "its GPU time to come back")


def test_a_class_begins_on_time_and_lets_in_who_logs_in_for_the_first_time_during_it(
    calendar: Calendar, site: Hub
) -> None:
    site.api("DELETE", "/users/tina")
    booked = calendar.book(start=time.time() + 8, seats=1, account="teaching", group="carme-users")
    calendar.wait_kept(booked)
    wait_for(lambda: calendar.one(booked)["state"] == "active", 30, "its start")
    assert time.time() < booked["start"] + 10, "not at the next comparison, which is made twice a minute"
    site.login("tina")
    site.start_server("tina", profile="a100", gpus=4, time_minutes=10)
    (row,) = [job for job in site.jobs() if job["user"] == "tina"]
    output = site.cluster.run("squeue", "-h", "-j", row["id"], "-O", "reservation:200").stdout
    assert output.split()[0].split(",")[0] in booked["slurm"]


def test_taken_gpus_are_refused_with_alternatives(calendar: Calendar) -> None:
    start = time.time() + 3600
    first = calendar.book(start=start)
    refused = calendar.ask("bob", start=start + 300, seats=1)
    assert (refused.status, refused.body["error"]) == (409, "slot-taken"), refused
    (conflict,) = refused.body["conflicts"]
    assert conflict["times"]
    free = conflict["times"][0]
    taken = calendar.book("bob", start=free["start"], minutes=(free["end"] - free["start"]) // MINUTE, seats=1)
    assert taken["end"] <= first["start"] or taken["start"] >= first["end"]
    other_user = calendar.people["bob"].send(f"bookings/{first['id']}/cancel", {})
    assert other_user.status in (403, 404)
    key = uuid.uuid4().hex
    body = {"title": "Twice", "gpu_type": "a100", "gpus": 4, "start": first["end"], "end": first["end"] + 600}
    answers = [calendar.people["alice"].send("bookings", body, key) for _ in range(2)]
    assert [each.status for each in answers] == [200, 200], answers
    assert answers[0].body["bookings"][0]["id"] == answers[1].body["bookings"][0]["id"]


def test_a_reservation_deleted_by_hand_is_restored_within_a_minute(calendar: Calendar, site: Hub) -> None:
    booked = calendar.book(start=time.time() + 3600)
    calendar.wait_kept(booked)
    for name in booked["slurm"]:
        site.cluster.run("scontrol", "delete", f"reservationname={name}")
    calendar.wait_kept(booked, limit=60)
    wait_for(lambda: calendar.people["ada"].get("health")["equal"], 60, "the calendar to equal Slurm")


def test_a_service_killed_between_its_database_and_slurm_keeps_the_booking(calendar: Calendar, site: Hub) -> None:
    assert calendar.people["ada"].get("health")["keeping"]
    assert calendar.in_slurm() == {}
    site.cluster.freeze("slurmctld")  # so that the booking is in the database, and cannot be in Slurm
    try:
        booked = calendar.book(start=time.time() + 3600)
        before = service(site)
        os.kill(before, signal.SIGKILL)
        wait_for(lambda: service(site) not in (0, before), 60, "the hub to start its service again")
        wait_for(lambda: site.request("GET", ROOT + "health").status == 200, 60, "the new service to answer")
    finally:
        site.cluster.thaw("slurmctld")
    calendar.wait_kept(booked)
    assert calendar.in_slurm().keys() == set(booked["slurm"]), "all of it once, and nothing else"
    assert calendar.one(booked)["state"] == "confirmed"


def test_a_controller_that_is_down_when_it_starts_keeps_it_when_it_is_back(calendar: Calendar, site: Hub) -> None:
    booked = calendar.book(start=time.time() + 20)
    site.cluster.kill("slurmctld")
    try:
        wait_for(lambda: calendar.one(booked)["state"] == "active", 90, "its time to come")
        output = str(site.login("alice").get("/services/reservations/").body)
        assert "Slurm does not answer just now" in output
    finally:
        Sandbox(site.cluster.state).restart("slurmctld")
    calendar.wait_kept(booked)
    wait_for(lambda: set(calendar.in_slurm().values()) == {"ACTIVE"}, 30, "it to be active in Slurm")
    site.start_server("alice", profile="a100", gpus=4, time_minutes=30)
