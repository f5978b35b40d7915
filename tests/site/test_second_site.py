"""The docs are enough: a site that knows nothing of us, with a hub that was installed by them alone, in use."""

from __future__ import annotations

import json
import re
import time

import pytest
from machines import wait_for
from second_site import SecondSite

pytestmark = pytest.mark.nightly
USER, OTHER = "alice", "pierre"
OPTIONS = {"profile": "gpu", "gpus": 1}
#: What opening each GPU's file says: there is no driver (ENXIO), or the cgroup does not allow it (EPERM).
OPEN = """
import errno, os
for number in (0, 1):
    try:
        os.open(f"/dev/nvidia{number}", os.O_RDWR)
    except OSError as error:
        print(errno.errorcode[error.errno])
"""


@pytest.fixture(scope="module")
def token(second_site: SecondSite) -> str:
    """Return a token of the user, who logs in by the page."""
    return second_site.token(USER)


@pytest.fixture(scope="module")
def session(second_site: SecondSite, token: str) -> str:
    """Return the job id of a session; it ends by itself where the last test did not stop it."""
    began = time.monotonic()
    second_site.visit("start", USER, json.dumps(OPTIONS), token=token)
    second_site.seconds["a session, from the click"] = time.monotonic() - began
    (job,) = second_site.controller.run("squeue -h -o %A").split()
    return job


def test_hub_and_proxy_run_under_systemd(second_site: SecondSite, token: str) -> None:
    hub = second_site.hub
    assert hub.run("systemctl is-active carme-hub carme-hub-proxy").split() == ["active", "active"]
    assert hub.run("systemctl --failed --no-legend").strip() == ""
    for unit, can_gain in (("carme-hub", True), ("carme-hub-proxy", False)):
        process = hub.run(f"cat /proc/$(systemctl show -p MainPID --value {unit})/status")
        status = dict(line.split(":\t", 1) for line in process.splitlines() if ":\t" in line)
        assert status["Uid"].split() == ["950"] * 4, unit
        assert status["NoNewPrivs"] == str(int(not can_gain)), unit
        # The hub's are those that sudo may give to its helpers; the proxy's own is CAP_NET_BIND_SERVICE, for port 443.
        assert can_gain or (status["CapEff"], status["CapBnd"]) == ("0000000000000400",) * 2


def test_a_user_outside_the_group_may_not_log_in(second_site: SecondSite, token: str) -> None:
    answer = json.loads(second_site.visit("token", OTHER))
    assert answer["status"] == 403, answer


def test_a_cell_runs_on_a_compute_node_as_the_user(second_site: SecondSite, token: str, session: str) -> None:
    code = "import os, pwd, socket; print(socket.gethostname(), os.getuid(), pwd.getpwuid(os.getuid()).pw_name)"
    said = json.loads(second_site.visit("cell", USER, code, token=token))
    host, *who = said.split()
    assert who == ["5001", USER], said
    assert second_site.controller.run(f"squeue -h -j {session} -o '%N %u %a'").split() == [host, USER, "physics"]


def test_a_session_reaches_its_own_gpu_alone(second_site: SecondSite, token: str, session: str) -> None:
    opened = json.loads(second_site.visit("cell", USER, OPEN, token=token)).split()
    assert sorted(opened) == ["ENXIO", "EPERM"]


def test_a_session_survives_a_restart_of_the_hub(second_site: SecondSite, token: str, session: str) -> None:
    second_site.hub.run("systemctl restart carme-hub")
    second_site.wait_for_page()
    assert json.loads(second_site.visit("cell", USER, "print(6 * 7)", token=token)).strip() == "42"
    assert second_site.controller.run("squeue -h -o %A").split() == [session]


def test_a_stopped_session_is_in_slurms_accounting(second_site: SecondSite, token: str, session: str) -> None:
    second_site.visit("stop", USER, token=token)
    wait_for(lambda: second_site.controller.run("squeue -h").strip() == "", 60, "the job to end")
    said = f"sacct -n -X -P -j {session} -o User,Account,State,ElapsedRaw,AllocTRES"

    def ended() -> bool:
        return "RUNNING" not in second_site.controller.run(said)

    wait_for(ended, 30, "accounting to have its end")
    user, account, state, seconds, resources = second_site.controller.run(said).strip().split("|")
    assert (user, account) == (USER, "physics")
    assert re.match("COMPLETED|CANCELLED", state), state
    assert int(seconds) > 0
    assert "gres/gpu:a100=1" in resources
    assert second_site.nodes_are_idle()


def test_the_doctor_finds_nothing_unsafe_afterwards(second_site: SecondSite, token: str) -> None:
    (step,) = [step for step in second_site.by_hand.steps if "carme-hub doctor" in step.text]
    doctor = next(line for line in step.text.splitlines() if "carme-hub doctor" in line)
    done = second_site.hub.try_run(f"cd /var/lib/carme-hub; {doctor}")
    assert done.returncode == 0, done.stdout
