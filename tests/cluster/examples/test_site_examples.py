"""The examples of sites on a real Slurm: each starts, and a session does what the example is about."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import psycopg
import pytest
import yaml
from example_hub import EXAMPLES, example_hub, works
from rig.databases import OnePostgres, one_postgres
from rig.hub import Hub, Person, wait_for
from rig.rest import Rest, clear_calendar, wait_for_calendar

__all__ = ["one_postgres"]
CALENDAR = "/services/reservations/api/v1/"
#: The sandbox's users, in the place of the examples' groups.
PEOPLE = {'"gpu-users"': '"carme-users"'}
#: Profiles stay those of the example; images have its names, and are the sandbox's first one.
OFFER = """
here = c.SlurmContainerSpawner.images[0]
c.SlurmContainerSpawner.images = [{**here, "name": image["name"]} for image in example.SlurmContainerSpawner.images]
c.SlurmContainerSpawner.profile_list = example.SlurmContainerSpawner.profile_list
"""
GROUP = "course-ml"


def test_slurmrestd_submits_with_the_settings_of_the_example(site: Hub, open_path: Path) -> None:
    # The sandbox has its own paths for the same settings, and names where its Slurm is.
    ours = """
assert set(example.CarmeSlurm) <= set(c.CarmeSlurm), set(example.CarmeSlurm) - set(c.CarmeSlurm)
for name in set(c.CarmeSlurm) - set(example.CarmeSlurm) - {"slurm_prefix", "slurm_conf"}:
    raise ValueError(f"the sandbox sets {name}, the example does not")
assert c.CarmeSlurm.submit_via == example.CarmeSlurm.submit_via
"""
    with example_hub(site, "slurmrestd", open_path, kept=("CarmeAuthenticator",), replaced=PEOPLE, changes=ours) as hub:
        hub.login("alice")
        assert works(hub, "alice", profile="cpu")["user"] == "alice"


def test_both_databases_are_in_postgresql(site: Hub, open_path: Path, one_postgres: OnePostgres) -> None:
    server = one_postgres.server()
    server._execute("CREATE DATABASE jupyterhub")
    with server.database() as ours:
        base = "postgresql+psycopg://carme@db.example.org/"
        replaced = {**PEOPLE, f"{base}jupyterhub": server.url("jupyterhub"), f'"{base}carme"': repr(ours)}
        for found in Path(psycopg.__file__).parents[1].glob("psycopg*"):  # the sandbox's hub has no driver
            shutil.copytree(found, open_path / "packages" / found.name)
        with example_hub(
            site,
            *("postgresql", open_path),
            kept=("CarmeAuthenticator",),
            replaced=replaced,
            PYTHONPATH=str(open_path / "packages"),
        ) as hub:
            hub.login("alice")
            works(hub, "alice", profile="cpu")
            with psycopg.connect(ours.replace("+psycopg", "")) as connection:
                rows = connection.execute('select count(*) from session where "user" = %s', ("alice",)).fetchone()
            with psycopg.connect(server.url("jupyterhub").replace("+psycopg", "")) as connection:
                users = connection.execute("select count(*) from users where name = 'alice'").fetchone()
            assert (rows, users) == ((1,), (1,))
    server._execute("DROP DATABASE jupyterhub WITH (FORCE)")


def test_each_profile_starts_in_its_partition_with_its_part_of_a_gpu(site: Hub, open_path: Path) -> None:
    partitions = {f'"partition": "{name}"': '"partition": "interactive"' for name in ("cpu", "mig", "gpu")}
    partitions['"partition": "long"'] = '"partition": "batch"'
    with example_hub(
        site,
        *("partitions-mig", open_path),
        kept=("CarmeAuthenticator",),
        replaced={**PEOPLE, **partitions},
        changes=OFFER,
    ) as hub:
        form = str(hub.login("alice").get("/hub/spawn").body)
        assert [name in form for name in ("No GPU", "Part of an H100", "Whole GPUs", "Long trainings")] == [True] * 4
        assert "Long trainings" not in str(hub.login("tina").get("/hub/spawn").body), "she is not in physics"
        assert partition_and_gpus(hub, works(hub, "alice", profile="mig", gpu_type="1g.10gb")) == (
            "interactive",
            "gres/gpu:1g.10gb:1",
        )
        hub.stop_server("alice")
        job = works(hub, "alice", profile="long", gpus=2, cpus=2, memory_gib=4, time_minutes=60)
        assert partition_and_gpus(hub, job) == ("batch", "gres/gpu:a100:2")
        refused = hub.begin("tina", profile="long")
        assert refused.status >= 400, refused


def partition_and_gpus(hub: Hub, job: dict[str, str]) -> tuple[str, str]:
    said = hub.cluster.run("squeue", "-h", "-j", job["id"], "-O", "Partition:40,tres-per-node:60").stdout.split()
    return said[0], said[1].replace("gres:", "gres/")  # as releases after 22.05 write it


@pytest.fixture
def course() -> Iterator[str]:
    """The class as a group of the system, with alice in it."""
    subprocess.run(["groupadd", GROUP], check=True)
    subprocess.run(["gpasswd", "--add", "alice", GROUP], check=True, capture_output=True)
    yield GROUP
    subprocess.run(["groupdel", GROUP], check=True)


def test_a_lecturer_books_for_the_class_and_students_keep_to_the_policy(
    site: Hub, open_path: Path, course: str
) -> None:
    replaced = {**PEOPLE, '"partition": "gpu"': '"partition": "interactive"'}
    replaced |= {'"lecturers"': '"carme-teachers"', '"hub-admins"': '"carme-admins"'}
    changes = OFFER + "c.CarmeQuotas.policy_file = example.CarmeQuotas.policy_file\n"
    changes += "c.CarmeReservations.no_show = example.CarmeReservations.no_show\n"
    with example_hub(
        site, "classes", open_path, kept=("CarmeAuthenticator",), replaced=replaced, changes=changes
    ) as hub:
        try:
            wait_for_calendar(hub)
            _the_class(hub)
        finally:
            hub.stop_all()
            clear_calendar(hub)


def _the_class(hub: Hub) -> None:
    alice, tina = Rest(hub, "alice", CALENDAR), Rest(hub, "tina", CALENDAR)
    assert {GROUP} <= set(hub.api("GET", "/users/alice").body["groups"])
    assert "role:teacher" in hub.api("GET", "/users/tina").body["groups"]
    now = datetime.now(ZoneInfo("Europe/Berlin"))
    begins = (now + timedelta(minutes=1)).strftime("%Y-%m-%dT%H:%M")
    ends = (now + timedelta(minutes=61)).strftime("%Y-%m-%dT%H:%M")
    body = {
        **{"title": "Exercise 3", "account": "teaching", "gpu_type": "a100", "gpus": 1, "seats": 2, "group": GROUP},
        **{"profile": "class", "start": begins, "end": ends, "zone": "Europe/Berlin"},
    }
    refused = alice.send("bookings", {**body, "account": "physics"})
    assert refused.status in (403, 409), refused
    booked = tina.send("bookings", body)
    assert booked.status in (200, 201), booked
    # A student has one GPU at a time, and two hours at most; a project is not for the class alone.
    policy = yaml.safe_load((EXAMPLES / "classes/policy.yaml").read_text())
    assert policy["quotas"][0]["concurrent_gpus"] == 1
    too_many = hub.begin("alice", profile="project", gpus=2)
    assert too_many.status >= 400, too_many
    assert "course-ml" in json.dumps(too_many.body)
    page = Person(hub, "alice")
    page.login(hub.cluster.passwords["alice"])
    wait_for(lambda: "Class now: Exercise 3" in str(page.get("/hub/spawn").body), 120, "the class to begin")
