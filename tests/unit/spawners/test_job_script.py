"""What a request comes to as a job."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import replace
from typing import Any

import pytest

from carme_hub.activity.settings import CarmeActivity
from carme_hub.containers.registry import RUNTIMES, runtime
from carme_hub.containers.runtime import Bind, Image
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.sessions.session import Request
from carme_hub.spawners.companions.script import render_batch_job, render_companion
from carme_hub.spawners.job_script import Owner, Reporting, Server, Site, container_of, render
from carme_hub.training.server.orderly_end import commands

IMAGE = Image("default", "/srv/images/default", "dir")
ALICE = Owner("alice", 1001, 1001, "/home/alice")
SERVER = Server(("jupyterhub-singleuser",), {}, "http://hub/callback", "nonce")


@pytest.mark.parametrize(
    ("of_priority", "extra", "nice", "left"),
    [
        (0, {}, 0, {}),
        (60, {}, 60, {}),
        (60, {"nice": "500", "constraint": "fast"}, 560, {"constraint": "fast"}),
        (0, {"nice": "500"}, 0, {"nice": "500"}),
        (50, {"nice": ""}, 150, {}),  # a bare --nice
    ],
)
def test_a_lowered_priority_comes_on_top_of_what_the_site_gives_every_session(
    of_priority: int, extra: dict[str, str], nice: int, left: dict[str, Any]
) -> None:
    site = Site(runtime("bubblewrap"), extra=extra)
    spec = render("0f9a", ALICE, Request("cpu", "default", nice=of_priority), IMAGE, SERVER, site)
    assert (spec.nice, spec.extra) == (nice, left)


@pytest.mark.parametrize(
    ("request_excludes", "extra", "exclude", "left"),
    [
        ("", {}, "", {}),
        ("n1", {}, "n1", {}),
        ("", {"exclude": "n[7-9]"}, "", {"exclude": "n[7-9]"}),
        ("n1,n2", {"exclude": "n[7-9]"}, "n[7-9],n1,n2", {}),
    ],
)
def test_the_nodes_that_the_site_excludes_stay_excluded(
    request_excludes: str, extra: dict[str, str], exclude: str, left: dict[str, str]
) -> None:
    site = Site(runtime("bubblewrap"), extra=extra)
    spec = render("0f9a", ALICE, Request("cpu", "default", exclude=request_excludes), IMAGE, SERVER, site)
    assert (spec.exclude, spec.extra) == (exclude, left)


@pytest.mark.parametrize(
    ("reservation", "extra", "said"),
    [
        ("", {}, "gpu_a100:2"),
        ("by-hand", {"licenses": "matlab:1"}, "matlab:1,gpu_a100:2"),
        ("carme-0123456789abcdef-0", {"licenses": "matlab:1"}, "matlab:1"),  # the booking has them already
    ],
)
def test_a_session_outside_of_bookings_names_the_licences_of_its_gpus(
    reservation: str, extra: dict[str, str], said: str
) -> None:
    site = Site(runtime("bubblewrap"), extra=extra, licenses={"a100": "gpu_a100"})
    request = Request("gpu", "default", gpus=Gpus("a100", 2), reservation=reservation)
    assert render("0f9a", ALICE, request, IMAGE, SERVER, site).extra["licenses"] == said
    for other in (Request("cpu", "default"), Request("gpu", "default", gpus=Gpus("h100", 1))):
        assert render("0f9a", ALICE, other, IMAGE, SERVER, site).extra == extra


REPORTING = Reporting("https://hub/services/activity/", lambda session: f"TOKEN-{session}", "/ca.pem", 5.0, "/nvml.so")


@pytest.mark.parametrize("kind", ["session", "companion", "batch job"])
def test_a_job_reports_what_it_uses_where_the_site_measures_it(kind: str) -> None:
    def document(site: Site) -> dict[str, Any]:
        request = Request("gpu", "default", gpus=Gpus("a100", 2), cpus=4, memory_mib=8192)
        if kind == "companion":
            spec = render_companion("0f9a", "parent", ALICE, request, IMAGE, site)
        elif kind == "batch job":
            spec = render_batch_job("0f9a", ALICE, replace(request, batch="run"), IMAGE, site, {})
        else:
            spec = render("0f9a", ALICE, request, IMAGE, SERVER, site)
        assert "TOKEN-0f9a" not in json.dumps(spec.environment)
        return dict(json.loads(spec.data))

    site = Site(runtime("bubblewrap"), virtual=True)
    assert "activity" not in document(site)
    found = document(replace(site, reporting=REPORTING))
    assert found["activity"] == {
        "url": "https://hub/services/activity/api/v1/sessions/0f9a/minutes",
        "token": "TOKEN-0f9a",
        **{"ca_file": "/ca.pem", "interval": 5.0, "nvml": "/nvml.so", "virtual": True},
        **{"memory_limit": 8192, "cpus": 4},
    }
    assert {"carme-report", "carme-minutes", "carme-usage", "carme-nvml", "carme-memory"} <= set(found["files"])
    assert "TOKEN-0f9a" not in json.dumps([found["plan"], found["rank"], found["files"]])


# -- ranks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["apptainer", "bubblewrap", "charliecloud", "enroot", "podman"])
def test_ranks_have_the_sessions_container_with_another_command_and_no_secret(name: str) -> None:
    server = Server(("jupyterhub-singleuser",), {"JUPYTERHUB_API_TOKEN": "SECRET"}, "http://hub/callback", "NONCE")
    request = Request("gpu", "default", gpus=Gpus("a100", 2), working_folder="work")
    document = json.loads(render("0f9a", ALICE, request, IMAGE, server, Site(runtime(name))).data)
    plan, rank = document["plan"], document["rank"]["plan"]
    assert rank["argv"][-1] == "@CARME_ARGV@"
    assert rank["argv"].count("@CARME_ARGV@") == 1
    assert set(plan["pass_env"]) < set(rank["pass_env"])
    assert {"SLURM_PROCID", "SLURM_STEP_TASKS_PER_NODE", "SLURMD_NODENAME", "CARME_SLOT"} <= set(rank["pass_env"])
    assert "SECRET" not in json.dumps(document["rank"])
    assert "NONCE" not in json.dumps(document["rank"])
    assert rank["supervise"] == plan["supervise"]
    assert rank["preflight"] == plan["preflight"]
    # Where it starts is looked for by what runs inside, so that a folder which is missing can be told or made.
    assert document["singleuser"]["folder"] == "/home/alice/work"
    assert document["singleuser"]["make_folder"] is False
    if rank["node_folder"]:  # two ranks on one node must not share it
        assert "@CARME_RANK@" in rank["node_folder"]


@pytest.mark.parametrize("name", ["apptainer", "bubblewrap", "charliecloud", "enroot", "podman"])
def test_packages_of_a_session_are_seen_by_its_ranks(name: str) -> None:
    packages = "/home/alice/.carme/sessions/0f9a/packages"
    spec = render("0f9a", ALICE, Request("cpu", "default"), IMAGE, SERVER, Site(runtime(name)))
    document = json.loads(spec.data)
    for plan in (document["plan"], document["rank"]["plan"]):
        environ = {name.removeprefix("APPTAINERENV_"): value for name, value in plan["environ"].items()}
        assert environ["CARME_PACKAGES"] == packages


def test_pyxis_cannot_run_ranks_and_says_so() -> None:
    image = Image("default", "/srv/images/default.sqsh", "sqfs")
    document = json.loads(render("0f9a", ALICE, Request("cpu", "default"), image, SERVER, Site(runtime("pyxis"))).data)
    said = "Pyxis runs the containers of this site, and cannot run ranks. Tell the administrator."
    assert document["rank"] == {"refused": said}


@pytest.mark.parametrize("name", sorted(set(RUNTIMES) - {"pyxis"}))
def test_the_document_of_a_large_site_fits_into_one_variable_of_the_jobs_environment(name: str) -> None:
    binds = tuple(Bind(f"/a/long/path/of/the/site/{number}", f"/data/{number}", "rw") for number in range(30))
    environ = {f"SITE_VARIABLE_{number}": "value" * 10 for number in range(30)}
    server = replace(SERVER, tls=dict.fromkeys(("keyfile", "certfile", "cafile"), "x" * 4000))
    site = Site(runtime(name), binds=binds, bind_roots=("/a",), environ=environ, reporting=REPORTING)
    spec = render("0f9a" * 8, ALICE, Request("gpu", "default", gpus=Gpus("a100", 2)), IMAGE, server, site)
    assert len(base64.b64encode(zlib.compress(spec.data))) < 60 * 1024  # execve(2), MAX_ARG_STRLEN is 128 KiB


@pytest.mark.parametrize("kind", [True, False])
def test_programs_of_a_session_know_that_its_gpus_are_virtual(kind: bool) -> None:
    site = Site(runtime("bubblewrap"), virtual=kind)
    container = container_of("0f9a", ALICE, Request("cpu", "default"), IMAGE, site, "/home/alice/packages")
    assert container.environ.get("CARME_VIRTUAL_GPUS") == ("1" if kind else None)


@pytest.mark.parametrize("kept", [True, False])
def test_supervisors_know_the_memory_that_they_see_to(kept: bool) -> None:
    site = Site(runtime("bubblewrap"), keeps_memory=kept)
    request = Request("cpu", "default", memory_mib=2048)
    document = json.loads(render("0f9a" * 8, ALICE, request, IMAGE, SERVER, site).data)
    for plan in (document["plan"], document["rank"]["plan"]):
        assert plan["memory_mib"] == (2048 if kept else 0)


def test_a_session_knows_which_images_have_which_backend() -> None:
    site = Site(runtime("bubblewrap"), images={"torchrun": ["default", "big"]})
    container = container_of("0f9a", ALICE, Request("cpu", "default"), IMAGE, site, "/home/alice/packages")
    assert json.loads(container.environ["CARME_IMAGES"]) == {"torchrun": ["default", "big"]}
    container = container_of("0f9a", ALICE, Request("cpu", "default"), IMAGE, Site(site.runtime), "/p")
    assert "CARME_IMAGES" not in container.environ


def test_a_container_knows_the_sites_command_before_the_end() -> None:
    text = CarmeActivity(before_end=["/opt/save", "all"], before_end_seconds=7).before_end_text
    assert commands({"CARME_BEFORE_END": text}) == [(["/opt/save", "all"], 7.0)]
    request = Request("gpu", "default")
    bare = Site(runtime("bubblewrap"))
    for site, there in ((replace(bare, reporting=replace(REPORTING, before_end=text)), text), (bare, "")):
        found = container_of("0f9a", ALICE, request, IMAGE, site, "/packages")
        assert found.environ.get("CARME_BEFORE_END", "") == there


@pytest.mark.parametrize("name", ["bubblewrap", "apptainer", "charliecloud", "podman"])
def test_the_container_for_a_full_home_has_its_session_folder_on_the_node(name: str) -> None:
    id = "0f9a" * 8
    image = replace(IMAGE, path="/srv/images/default.sqsh", format="sqfs") if name == "apptainer" else IMAGE
    document = json.loads(render(id, ALICE, Request("cpu", "default"), image, SERVER, Site(runtime(name))).data)
    part, home = document["full_home"], document["session_folder"]
    assert part["folder"] == f"/tmp/carme-{id}/{id}"
    words = " ".join(part["argv"])
    assert f"{part['folder']}/carme-singleuser" in words
    assert home not in words
    assert words.count(part["folder"]) > " ".join(document["plan"]["argv"]).count(home), "it is bound by itself"
    assert {"carme-full-home", "carme-end-report"} <= set(document["files"])
