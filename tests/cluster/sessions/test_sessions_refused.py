"""Sessions that do not start, or not yet: every interface explains each limit, fault and wait in helpful words."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any

import pytest
from rig.changed import changed_hub
from rig.hub import Hub, wait_for
from rig.truth import Truth
from session_parts import SessionOnNode, WatchedStart, message

from carme_hub.sandbox import Cluster

WAIT = "#!/bin/sh\nsleep 600\n"

MORE = """
spawner = c.SlurmContainerSpawner
spawner.images = [*spawner.images, {"name": "away", "path": "/srv/images/away"}]
small = {"cpus": 1, "memory_gib": 1, "time_minutes": {"min": 1, "max": 60, "default": 30}, "partition": "interactive"}
spawner.profile_list = [
    *spawner.profile_list,
    {**small, "slug": "typed", "display_name": "Limited", "qos": "typed", "gpus": {"types": ["a100"], "max": 4}},
    {**small, "slug": "away", "display_name": "Image away", "images": ["away"]},
    {**small, "slug": "broken", "display_name": "Broken server"},
    {**small, "slug": "deaf", "display_name": "Server that never comes"},
    {**small, "slug": "extra", "display_name": "Option that slurmrestd does not take"},
]

def hook(spawner):
    if spawner.user_options.get("profile") == "broken":
        spawner.cmd = ["/bin/sh", "-c", "echo the configuration is from 1999 >&2; exit 3"]
    if spawner.user_options.get("profile") == "deaf":
        spawner.cmd = ["/bin/sleep", "300"]
        spawner.start_timeout = 20
    if spawner.user_options.get("profile") == "extra":
        spawner.slurm_extra = {"acctg-freq": "task=30"}

spawner.pre_spawn_hook = hook
"""


@pytest.fixture(scope="module")
def hub(site: Hub) -> Iterator[Hub]:
    with changed_hub(site, MORE) as other:
        for user in ("alice", "bob"):
            other.login(user)
        yield other


@pytest.fixture(autouse=True)
def nothing_left(hub: Hub, cluster: Cluster) -> Iterator[None]:
    """No test of this file leaves a job, a server or an open session."""
    yield
    hub.stop_all()
    cluster.cancel_all()
    wait_for(lambda: not [row for row in Truth(hub).rows_now() if row.open], 60, "every session to be closed")


def failure(hub: Hub, user: str, name: str = "", **options: Any) -> str:
    """Request a server that cannot start; return the message."""
    answer = hub.begin(user, name, **options)
    if answer.status >= 400:
        return message(answer)
    last = hub.progress(user, name)[-1]
    assert last.get("failed"), last
    return str(last["message"])


# -- refused before anything is done ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "output"),
    [
        ({"profile": "a100", "gpus": 5}, "“A100” gives 1 to 4 GPUs; you asked for 5."),
        ({"profile": "a100", "cpus": 64}, "“A100” gives 1 to 32 CPUs; you asked for 64."),
        ({"profile": "h100", "time_minutes": 241}, "“H100” gives 5 to 240 minutes; you asked for 241."),
        ({"profile": "cpu", "gpus": 1}, "This profile gives no GPU."),
        ({"profile": "a100", "gres": "gpu:8"}, "The option “gres” is not known."),
        ({"profile": "a100", "account": "secret"}, "You may not charge the account “secret” for this."),
        ({"profile": "a100", "working_folder": "/etc"}, "The working folder /etc is not in your container."),
        ({"profile": "gold"}, "The profile “gold” is not offered to you."),
    ],
)
def test_choices_outside_the_limits_are_refused_with_the_same_message_by_form_and_api(
    hub: Hub, options: dict[str, Any], output: str
) -> None:
    answer = hub.begin("alice", **options)
    assert answer.status == 400
    assert output in message(answer)
    assert hub.server("alice") is None
    profile = options["profile"]
    fields = {f"{profile}.{name}": str(value) for name, value in options.items() if name != "profile"}
    page = person(hub, "alice").post("/hub/spawn", {"profile": profile, **fields})
    assert page.status == 400
    assert output in html.unescape(page.body)
    assert hub.server("alice") is None
    assert hub.jobs() == []


_people: dict[tuple[int, str], Any] = {}


def person(hub: Hub, user: str) -> Any:
    """Return a browser in which the user is logged in, one for all tests, because login attempts are counted."""
    key = (id(hub), user)
    if key not in _people:
        _people[key] = hub.login(user)
        _people[key].get("/hub/home")
    return _people[key]


def test_a_refused_choice_does_not_come_back_as_the_next_default(hub: Hub) -> None:
    assert hub.begin("alice", profile="a100", gpus=5).status == 400
    text = person(hub, "alice").get("/hub/spawn").body
    assert re.search(r'<option value="5"\s+selected', text) is None
    answer = hub.api("POST", "/users/alice/server", {"user_options": {"profile": "cpu"}})
    assert answer.status in (201, 202), answer


def test_unknown_options_are_refused(hub: Hub) -> None:
    for options in (
        {"profile": ["a100"]},
        {"gpus": True},
        {"gpus": 2.5},
        {"x" * 500: "1"},
        {"profile": {"slug": "cpu"}},
    ):
        answer = hub.begin("alice", **options)
        assert answer.status == 400, (options, answer)
    assert hub.jobs() == []


def test_a_system_account_or_a_name_that_nobody_has_gets_nothing(hub: Hub) -> None:
    for user in ("root", "daemon", "nobody", "no-such-person"):
        assert hub.begin(user).status in (400, 403, 404), user
    assert hub.jobs() == []


# -- refused by Slurm -------------------------------------------------------------------------------------------------


def test_a_limit_of_slurm_that_refuses_at_once_is_named(hub: Hub) -> None:
    output = failure(hub, "bob", profile="typed", gpus=3)
    assert "Slurm refused the job" in output
    assert "quality of service" in output or "limit" in output
    assert hub.server("bob") is None
    assert "Traceback" not in output


def test_a_limit_of_an_association_is_the_reason_of_a_wait(hub: Hub, cluster: Cluster) -> None:
    change = ("sacctmgr", "-i", "modify", "user", "bob", "set")
    cluster.run(*change, "GrpTRES=gres/gpu:a100=1")
    try:
        with WatchedStart(hub, "bob", profile="a100", gpus=2) as events:
            output = events.wait_message("the limit of your account on")
            assert "GPUs" in output or "gpu" in output.lower()
            assert "Assoc" in output
    finally:
        cluster.run(*change, "GrpTRES=gres/gpu:a100=-1")


# -- waiting ----------------------------------------------------------------------------------------------------------


def test_a_waiting_session_shows_its_place_and_start_and_leaves_nothing_when_stopped(
    hub: Hub, cluster: Cluster
) -> None:
    first = cluster.sbatch("--mem=100", "--gres=gpu:h100:4", "-t", "60", user="alice", script=WAIT)
    cluster.wait_job(first, "RUNNING")
    second = cluster.sbatch("--mem=100", "--gres=gpu:h100:4", "-t", "60", user="ada", script=WAIT)
    cluster.wait_for(lambda: cluster.job_state(second) == "PENDING")
    cluster.run("scontrol", "update", f"JobId={second}", "Priority=4000000")  # whatever either has used before
    with WatchedStart(hub, "bob", profile="h100", gpus=2) as events:
        output = events.wait_message("ahead of you")
        assert output.startswith("Waiting for 2 × h100; 1 ahead of you")
        assert re.search(r"expected start \w*\s?\d\d:\d\d", events.wait_message("expected start"))
        seen = SessionOnNode.of(hub, "bob")
        token_id = seen.row.token_id
        assert token_id in {token.id for token in Truth(hub).tokens() or []}
        # No server has called back yet, and none can: the job does not run.
        assert seen.call_back("x" * 43) == 403
        assert seen.again().row.port == 0
        hub.stop_server("bob")
    assert token_id not in {token.id for token in Truth(hub).tokens() or []}
    wait_for(lambda: cluster.job_state(seen.row.job_id) in ("CANCELLED", ""), 20, "the job to be cancelled")
    assert not seen.folder.exists()
    assert not seen.processes()
    assert seen.again().row.cancel_reason == "Stopped."


def test_a_waiting_session_starts_by_itself_when_its_turn_comes(hub: Hub, cluster: Cluster) -> None:
    first = cluster.sbatch("--mem=100", "--gres=gpu:h100:4", "-t", "60", user="alice", script=WAIT)
    cluster.wait_job(first, "RUNNING")
    with WatchedStart(hub, "bob", profile="h100", gpus=1) as events:
        events.wait_message("you are next")
        cluster.run("scancel", str(first))
        hub.wait_server("bob")
        events.wait_message("Slurm has allocated node4")
        events.wait_message("The container runs on node4 with 1 × h100 (virtual GPU)")
        events.wait_message("The server answers.")


# -- failing ----------------------------------------------------------------------------------------------------------


def test_an_option_of_the_site_that_cannot_be_sent_is_named_and_no_job_is_left(hub: Hub, cluster: Cluster) -> None:
    assert "cannot be sent through slurmrestd: acctg-freq" in failure(hub, "alice", profile="extra")
    seen = SessionOnNode.of(hub, "alice")
    assert not seen.row.open
    assert "acctg-freq" in seen.row.end_reason
    assert not cluster.run("squeue", "-h", "-u", "alice").stdout.strip()


def test_a_missing_image_is_named_with_the_end_of_the_log(hub: Hub) -> None:
    output = failure(hub, "alice", profile="away")
    assert "The container image is missing on the compute node" in output
    seen = SessionOnNode.of(hub, "alice")
    assert "/srv/images/away" in seen.log()
    assert "exit" in (seen.folder / "end.json").read_text()
    page = person(hub, "alice").get("/hub/spawn-pending/alice").body
    assert "The container image is missing" in html.unescape(page)
    assert "/srv/images/away" in page


def test_a_failed_server_is_reported_with_its_exit_code_and_its_last_output(hub: Hub) -> None:
    output = failure(hub, "alice", profile="broken")
    assert "exit code 3" in output
    page = person(hub, "alice").get("/hub/spawn-pending/alice").body
    assert "the configuration is from 1999" in page
    assert "Traceback" not in page


def test_a_server_that_never_answers_ends_at_the_start_time_limit_with_its_last_state(hub: Hub) -> None:
    output = failure(hub, "alice", profile="deaf")
    assert "did not start within" in output
    assert "its job is cancelled" in output
    wait_for(lambda: not hub.jobs(), 20, "the job to be cancelled")
    home = person(hub, "alice")
    wait_for(lambda: "did not start within" in str(home.get("/hub/home").body), 20, "the home page to say why it ended")
