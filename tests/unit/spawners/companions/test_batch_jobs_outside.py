"""A batch job from outside of a session has what user options of a server say, and the files of its run."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from test_batch_jobs_open import SpawnerOfBatchJobs
from test_companions_open import Part, Spawner, book, part

from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.sessions.companions import CompanionRequest
from carme_hub.errors import ProfileNotAllowed, Refused
from carme_hub.spawners.companions.companions import KeyUsed, open_companion, quote
from carme_hub.spawners.companions.outside import MAX_FILES, MAX_FILES_TEXT, PYTHON, checked_files, origin_of

__all__ = ["book", "part"]

OPTIONS = {"profile": "gpu", "gpus": 1, "image": "default"}
JOB = CompanionRequest(nodes=2, gpus=4, minutes=200, name="long", run="long", python=PYTHON)


class SpawnerWithoutSession(SpawnerOfBatchJobs):
    """Of a user who has no session; its site may have an admission of its own."""

    def __init__(self) -> None:
        Spawner.__init__(self)
        self.asked: list[Any] = []
        self.admission: Any = None


async def test_it_is_held_priced_and_submitted_as_from_a_session_with_these_options(part: Part) -> None:
    spawner = SpawnerWithoutSession()
    origin = await origin_of(part, spawner, OPTIONS)  # type: ignore[arg-type]
    assert (await quote(part, spawner, origin, JOB)).allowed  # type: ignore[arg-type]
    files = {"asked.json": "{}", "script.py": "print('ö')"}
    job, _ = await open_companion(part, spawner, origin, JOB, "k", files)  # type: ignore[arg-type]
    assert part.done == ["cost", "hold"]
    [spec] = part.client.specs
    assert (spec.user, spec.nodes, spec.gpus, spec.account, spec.time_limit) == (
        "alice",
        2,
        Gpus("a100", 4),
        "physics",
        202,
    )
    document = json.loads(spec.data)
    assert json.loads(document["files"]["run-files.json"]["text"]) == files
    assert document["files"]["run-files.json"]["mode"] == 0o600
    assert "python3" in document["plan"]["argv"]
    assert part.registry.current(origin.id) is None, "there is no such session"
    assert [each.id for each in part.registry.batch_jobs_of("alice")] == [job.id]
    assert part.registry.open_of("alice", "") == (), "it is no server"


async def test_a_repeated_request_opens_one_and_another_with_its_key_none(part: Part) -> None:
    spawner = SpawnerWithoutSession()
    found = [
        await open_companion(part, spawner, await origin_of(part, spawner, OPTIONS), JOB, "k")  # type: ignore[arg-type]
        for _ in range(2)
    ]
    assert found[0][0].id == found[1][0].id
    with pytest.raises(KeyUsed):
        await open_companion(
            *(part, spawner, await origin_of(part, spawner, OPTIONS)),  # type: ignore[arg-type]
            *(CompanionRequest(gpus=1, minutes=5, name="x", run="x", python=PYTHON), "k"),
        )
    assert len(part.client.specs) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"profile": "nothing"}, "nothing"),
        ({"profile": "gpu", "gpus": 99}, "99"),
        ({"profile": "gpu", "image": "of-bob"}, "of-bob"),
        ({"gpus": [1]}, "must be a text or a whole number"),
        ([], "user options"),
        ({"profile": "gpu", "node": "n 1"}, "is not the name of a node"),
    ],
)
async def test_the_form_and_this_allow_the_same(part: Part, options: Any, said: str) -> None:
    with pytest.raises(ProfileNotAllowed, match=said):
        await origin_of(part, SpawnerWithoutSession(), options)  # type: ignore[arg-type]


async def test_it_is_bound_to_no_node(part: Part) -> None:
    with pytest.raises(Refused, match="A batch job is not bound to one node"):
        await origin_of(part, SpawnerWithoutSession(), {**OPTIONS, "node": "n1"})  # type: ignore[arg-type]


async def test_two_open_jobs_of_a_user_have_two_names(part: Part) -> None:
    spawner = SpawnerWithoutSession()
    origin = await origin_of(part, spawner, OPTIONS)  # type: ignore[arg-type]
    await open_companion(part, spawner, origin, JOB, "k")  # type: ignore[arg-type]
    with pytest.raises(Refused, match="You have a batch job for a run long already"):
        await open_companion(part, spawner, origin, JOB, "another")  # type: ignore[arg-type]


async def test_an_admission_of_the_site_is_asked(part: Part) -> None:
    spawner = SpawnerWithoutSession()

    async def admission(asking: Any, request: Any) -> None:
        assert (asking, request.profile) == (spawner, "gpu")
        raise Refused("Not on Sundays.")

    spawner.admission = admission
    with pytest.raises(Refused, match="Not on Sundays"):
        await origin_of(part, spawner, OPTIONS)  # type: ignore[arg-type]


async def test_each_user_has_jobs_of_their_own(part: Part) -> None:
    ours = await origin_of(part, SpawnerWithoutSession(), OPTIONS)  # type: ignore[arg-type]
    other = SpawnerWithoutSession()
    other.user = SimpleNamespace(name="bob")
    theirs = await origin_of(part, other, OPTIONS)  # type: ignore[arg-type]
    assert ours.id != theirs.id, "one key of two users means two jobs"
    assert theirs.user == "bob"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([], "an object"),
        ({"../x": ""}, "not the name"),
        ({".x": ""}, "not the name"),
        ({"a/b": ""}, "not the name"),
        ({"a": 1}, "not the name"),
        ({f"f{n}": "" for n in range(MAX_FILES + 1)}, "at most"),
        ({"a": "x" * (MAX_FILES_TEXT + 1)}, "too large to be sent"),
    ],
)
def test_files_are_few_small_texts(files: Any, said: str) -> None:
    with pytest.raises(Refused, match=said):
        checked_files(files)
