"""The job of a session that copies data: its comment, its bind, its part of the data document."""

from __future__ import annotations

from dataclasses import replace

from carme_hub.containers.runtime import Bind
from carme_hub.domain.sessions.session import Request
from carme_hub.spawners.staging.job_part import comment, on_node, scratch_bind, stage_part

ID = "00000000-0000-4000-8000-000000000001"
STAGE = {
    "in": [{"source": "/shared/set/a", "target": "a"}, {"source": "s3:b", "target": "b"}],
    "out": [{"source": "run", "target": "/home/alice/run"}],
    "scratch_gib": 20,
}
REQUEST = Request("cpu", "default", stage=STAGE, time_limit=30)
BINDS = (Bind("/srv/folders/17", "/shared/set", "ro"), Bind("/data", "/data"))


def test_comment_asks_the_prolog_for_a_folder_behind_the_sites_own() -> None:
    assert comment(ID, REQUEST, "") == f"carme-stage {ID} 20"
    assert comment(ID, REQUEST, "site text") == f"site text carme-stage {ID} 20"


def test_scratch_of_the_node_is_where_the_session_looks_for_it() -> None:
    assert scratch_bind(ID, REQUEST, "/nvme") == (Bind(f"/nvme/{ID}/data", f"/scratch/{ID}", "rw"),)
    assert scratch_bind(ID, Request("cpu", "default"), "/nvme") == ()


def test_places_are_those_of_the_node() -> None:
    part = stage_part(REQUEST, "/nvme", BINDS, {"parallel": 4}, "https://hub/api/carme/sessions/x/port", "N")
    assert part["in"] == [{"source": "/srv/folders/17/a", "target": "a"}, {"source": "s3:b", "target": "b"}]
    assert part["out"] == STAGE["out"]
    assert part["report"] == {"url": "https://hub/api/carme/sessions/x/stage", "nonce": "N", "proofs": {}}
    assert "below" not in part
    assert "report" not in stage_part(REQUEST, "/nvme", BINDS, {}, "", "")


def test_nodes_of_a_run_have_a_folder_of_it_below_the_targets() -> None:
    of_run = replace(REQUEST, stage={**STAGE, "run": "run-7"})
    assert stage_part(of_run, "/nvme", BINDS, {}, "", "")["below"] == "run-7"


def test_longest_bind_wins_and_names_that_only_begin_alike_do_not_count() -> None:
    binds = (*BINDS, Bind("/srv/inner", "/shared/set/inner"))
    assert on_node("/shared/set/inner/x", binds) == "/srv/inner/x"
    assert on_node("/shared/settled", binds) == "/shared/settled"
    assert on_node("/shared/set", binds) == "/srv/folders/17"
