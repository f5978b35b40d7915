"""Running sessions: what a user gets, what stays hidden, who cannot reach it, and what is left after the end."""

from __future__ import annotations

import ast
import contextlib
import grp
import http.client
import pwd
import re
import ssl
import stat
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest
from rig.hub import Answer, Hub, Person, wait_for
from session_parts import SessionOnNode, command_lines, world_readable

from carme_hub.sandbox import Cluster


@dataclass
class Story:
    """Alice with two A100, started by the form, and a second server; Bob with a CPU notebook."""

    hub: Hub
    alice: Person
    bob: Person
    form: Answer
    posted: Answer

    def seen(self, user: str = "alice", name: str = "") -> SessionOnNode:
        return SessionOnNode.of(self.hub, user, name)

    def cell(self, user: str, code: str, name: str = "") -> str:
        return self.hub.run_cell(user, self.hub.new_kernel(user, name), code, name)


@pytest.fixture(scope="module")
def story(site: Hub) -> Story:
    alice, bob = site.login("alice"), site.login("bob")
    wait_for(lambda: "a100 free" in str(alice.get("/hub/spawn").body), 30, "the hub to know what is free")
    form = alice.get("/hub/spawn")
    posted = alice.post("/hub/spawn", {"profile": "a100", "a100.gpus": "2", "a100.time_minutes": "60"})
    site.begin("alice", "second", profile="cpu", cpus=1)
    site.begin("bob", profile="cpu")
    for user, name in (("alice", ""), ("alice", "second"), ("bob", "")):
        site.wait_server(user, name)
    return Story(site, alice, bob, form, posted)


# -- what a person gets -----------------------------------------------------------------------------------------------


def test_the_form_says_what_is_free_and_a_post_starts_it(story: Story) -> None:
    assert story.form.status == 200
    text = re.sub(r"\s+", " ", story.form.body)
    assert re.search(r"8 of 8 (virtual )?a100 free", text), text[-4000:]
    assert "virtual" in text
    assert story.posted.status == 302
    assert "/hub/spawn-pending/alice" in story.posted.headers["Location"]


def test_inside_are_the_users_own_uid_home_and_two_gpus_on_a_node_of_slurms_choice(story: Story) -> None:
    code = (
        "import os, pwd\n"
        "e = os.environ\n"
        "print([os.getuid(), os.getgid(), os.getgroups(), pwd.getpwuid(os.getuid()).pw_name, e['HOME'], os.getcwd(),"
        " e['CUDA_VISIBLE_DEVICES'], e['SLURMD_NODENAME'], e['SLURM_JOB_ID'], os.listdir(e['HOME']) != []])"
    )
    uid, gid, _groups, name, home, folder, gpus, node, job, _ = ast.literal_eval(story.cell("alice", code))
    entry, row = pwd.getpwnam("alice"), story.seen().row
    assert (uid, gid, name, home, folder) == (entry.pw_uid, entry.pw_gid, "alice", entry.pw_dir, entry.pw_dir)
    assert len(set(gpus.split(","))) == 2
    assert (node, int(job)) == (row.node, row.job_id)
    assert node in ("node1", "node2")


def test_no_gpu_is_seen_where_none_was_asked_for(story: Story) -> None:
    assert story.cell("bob", "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES', 'none'))").strip() in ("none", "")


def test_what_is_written_outside_home_is_gone_with_the_session_and_the_system_cannot_be_changed(story: Story) -> None:
    temporary = f"/tmp/carme-{uuid.uuid4().hex}"  # whatever else is on this machine
    code = (
        "import os\n"
        "def can(path):\n"
        "    try:\n"
        "        open(path, 'w').close(); return True\n"
        "    except OSError:\n"
        "        return False\n"
        f"print([can('{temporary}'), can(os.path.expanduser('~/made-inside')), can('/usr/bin/x'), can('/etc/passwd')])"
    )
    assert ast.literal_eval(story.cell("alice", code))[:2] == [True, True]
    assert not Path("/usr/bin/x").exists()
    assert (Path(pwd.getpwnam("alice").pw_dir) / "made-inside").exists()
    assert not Path(temporary).exists()


def test_two_servers_of_one_user_are_two_sessions_with_a_job_each(story: Story) -> None:
    first, second = story.seen(), story.seen("alice", "second")
    assert first.row.job_id != second.row.job_id
    assert {first.row.port, second.row.port}.isdisjoint({0})
    names = {job["name"] for job in story.hub.jobs()}
    assert {f"carme-{first.row.id}", f"carme-{second.row.id}"} <= names
    assert story.cell("alice", "import os; print(os.environ['CARME_SESSION'])", "second").strip() == second.row.id


# -- what stays hidden ------------------------------------------------------------------------------------------------


def test_nothing_of_the_hubs_environment_is_inside(story: Story) -> None:
    record = story.hub.demo.sandbox.processes.record("hub")
    assert record is not None
    words = Path(f"/proc/{record.pid}/environ").read_bytes().decode().split("\0")
    theirs = dict(word.split("=", 1) for word in words if "=" in word)
    assert {"CONFIGPROXY_AUTH_TOKEN", "CARME_SANDBOX_CHECK_TOKEN"} <= set(theirs)
    common = {"LANG"}
    for pid, inside in story.seen().processes().items():
        overlaps = {name for name, value in inside.items() if theirs.get(name) == value} - common
        assert not overlaps, f"process {pid}: {overlaps}"
        values = " ".join(inside.values())
        assert not [name for name, value in theirs.items() if len(value) > 12 and value in values]
        assert "CARME_DATA" not in inside
        assert "SLURM_JWT" not in inside


def _secrets(story: Story) -> dict[str, str]:
    found = {"the hub's own token": story.hub.token}
    found |= {f"the hub's {name}": value for name, value in story.hub.demo.secrets().items()}
    for seen in (story.seen(), story.seen("alice", "second"), story.seen("bob")):
        document = seen.document
        found[f"token of {seen.row.id}"] = seen.token
        found[f"nonce of {seen.row.id}"] = seen.nonce
        found[f"key of {seen.row.id}"] = document["files"]["tls.key"]["text"].splitlines()[3]
    return found


def test_no_secret_is_in_a_command_line_in_slurms_answers_in_a_log_or_in_a_file_that_others_can_read(
    story: Story, cluster: Cluster
) -> None:
    secrets = _secrets(story)
    texts = {f"command line of {pid}": line for pid, line in command_lines()}
    for user in (None, "alice", "bob"):
        texts[f"scontrol as {user}"] = cluster.run("scontrol", "-dd", "show", "job", user=user, check=False).stdout
        texts[f"squeue as {user}"] = cluster.run("squeue", "-a", "-O", "all", user=user, check=False).stdout
        words = ("-D", "-a", "-P", "-S", "now-1hour", "-o", "submitline%5000,comment,admincomment,workdir,jobname")
        texts[f"sacct as {user}"] = cluster.run("sacct", *words, user=user, check=False).stdout
    texts |= {str(path): path.read_text(errors="replace") for path in cluster.layout.log.iterdir() if path.is_file()}
    for seen in (story.seen(), story.seen("alice", "second"), story.seen("bob")):
        texts[f"log of {seen.row.id}"] = seen.log()
    for top in (cluster.state, Path("/home/alice"), Path("/home/bob"), Path("/tmp")):
        for path in world_readable(top):
            with contextlib.suppress(FileNotFoundError):  # other runs of tests remove theirs
                texts[str(path)] = path.read_text(errors="replace")
    assert texts["sacct as None"].strip()
    found = [f"{what}: {where}" for where, text in texts.items() for what, value in secrets.items() if value in text]
    assert found == []


def test_others_see_nothing_of_a_session_in_slurm(story: Story, cluster: Cluster) -> None:
    job = str(story.seen().row.job_id)
    assert job not in cluster.run("squeue", "-h", "-o", "%A", user="bob").stdout.split()


def test_the_sessions_files_are_its_owners_alone(story: Story) -> None:
    for seen in (story.seen(), story.seen("bob")):
        assert stat.S_IMODE(seen.folder.stat().st_mode) == 0o700
        for path in seen.folder.iterdir():
            assert not stat.S_IMODE(path.lstat().st_mode) & 0o077, path
            assert path.owner() == seen.row.user
        assert stat.S_IMODE((seen.folder / "job.log").stat().st_mode) == 0o600
        assert not (seen.folder / "singleuser.json").exists()


# -- who cannot reach it ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("person", "owner"), [("alice", "bob"), ("bob", "alice")])
def test_nobody_can_open_another_users_server(story: Story, person: str, owner: str) -> None:
    browser = story.alice if person == "alice" else story.bob
    for path in (f"/user/{owner}/lab", f"/user/{owner}/api/kernels", f"/user/{owner}/files/.bashrc"):
        assert browser.get(path).status in (403, 404), path
    assert browser.get(f"/hub/spawn/{owner}").status in (403, 404)


def test_a_token_of_alice_cannot_act_for_bob(story: Story) -> None:
    made = story.hub.api("POST", "/users/alice/tokens", {"note": "test", "expires_in": 300})
    assert made.status == 201
    for token in (made.body["token"], story.seen().token):
        assert story.hub.api("GET", "/users/bob", token=token).status in (403, 404)
        assert story.hub.api("POST", "/users/bob/servers/hers", {}, token=token).status in (403, 404)
        assert story.hub.api("DELETE", "/users/bob/server", token=token).status in (403, 404)
        answer = story.hub.request("GET", "/user/bob/api/kernels", None, {"Authorization": f"token {token}"})
        assert answer.status == 403
    # Its own token lets a server ask who comes; it starts and stops nothing.
    assert story.hub.api("DELETE", "/users/alice/servers/second", token=story.seen().token).status in (403, 404)
    assert story.hub.server("bob")


def test_a_servers_port_accepts_tls_from_the_hub_and_the_proxy_only(story: Story, tmp_path: Path) -> None:
    port = story.seen().row.port
    assert not _answers(http.client.HTTPConnection("127.0.0.1", port, timeout=10))
    files = story.seen("bob").document["files"]
    for name in ("tls.key", "tls.crt", "tls.ca"):
        (tmp_path / name).write_text(files[name]["text"])
    for certificate in (None, "bob's"):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if certificate:
            context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
        assert not _answers(http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=context))


def _answers(line: http.client.HTTPConnection) -> bool:
    try:
        line.request("GET", "/user/alice/api")
        line.getresponse()
    except (http.client.HTTPException, OSError):
        return False
    finally:
        line.close()
    return True


def test_batchspawners_callback_is_not_there(story: Story) -> None:
    for method in ("GET", "POST", "PUT"):
        assert story.hub.request(method, "/hub/api/batchspawner", '{"port": 1}').status == 404
        assert story.hub.api(method, "/batchspawner", {"port": 1}, token=story.seen().token).status == 404


# -- the callback -----------------------------------------------------------------------------------------------------


def test_the_callback_accepts_one_port_once_from_the_node_with_the_nonce_and_nothing_else(story: Story) -> None:
    seen, other = story.seen(), story.seen("bob")
    port, nonce = seen.row.port, seen.nonce
    refused = {
        "no nonce": seen.call_back("", port=port),
        "a wrong nonce": seen.call_back("x" * 43, port=port),
        "another session's nonce": seen.call_back(other.nonce, port=port),
        "a second port": seen.call_back(nonce, port=port + 1 if port < 60000 else port - 1),
        "a port as text": seen.call_back(nonce, f'{{"port": "{port}"}}'.encode()),
        "something beside the port": seen.call_back(nonce, f'{{"port": {port}, "ip": "10.0.0.1"}}'.encode()),
        "no JSON": seen.call_back(nonce, b"port=1"),
        "a long body": seen.call_back(nonce, b'{"port": ' + b" " * 5000 + b"1}"),
        "another address": seen.call_back(nonce, port=port, source="127.0.0.2"),
        "GET": seen.call_back(nonce, method="GET"),
        "PUT": seen.call_back(nonce, method="PUT"),
    }
    for header in ("X-Real-Ip", "X-Forwarded-For"):
        status = seen.call_back(nonce, port=port, source="127.0.0.2", headers={header: "127.0.0.1"})
        refused[f"another address and {header}"] = status
    assert {what: status for what, status in refused.items() if status not in (400, 403, 405, 413)} == {}
    # The first call's answer may have been lost: the same again is fine, and changes nothing.
    assert seen.call_back(nonce, port=port) == 204
    assert seen.again().row == seen.row
    assert story.hub.server("alice")
    assert story.cell("alice", "print(6 * 7)").strip() == "42"


def test_the_callback_is_not_open_for_a_session_that_never_was(story: Story) -> None:
    seen = story.seen()
    path = "/hub/api/carme/sessions/00000000-0000-0000-0000-000000000000/port"
    answer = story.hub.request("POST", path, '{"port": 40000}', {"Authorization": f"carme-nonce {seen.nonce}"})
    assert answer.status == 403


# -- links, the end ---------------------------------------------------------------------------------------------------


def test_a_link_with_options_shows_the_form_filled_in_and_starts_nothing(story: Story) -> None:
    answer = story.bob.get("/hub/spawn/bob/third?opt-profile=a100&opt-gpus=3")
    assert answer.status == 200
    assert re.search(r'value="3"\s+selected', answer.body)
    assert story.hub.server("bob", "third") is None
    assert len(story.hub.jobs()) == 3


def test_a_stopped_server_leaves_no_process_route_token_or_secret_and_the_others_continue(
    story: Story, cluster: Cluster
) -> None:
    seen, token = story.seen(), story.seen().token
    assert seen.processes()
    assert story.hub.api("GET", "/user", token=token).status == 200
    story.hub.stop_server("alice")
    assert story.hub.api("GET", "/user", token=token).status == 403
    wait_for(lambda: not seen.processes(), 60, "the container's processes to end")
    wait_for(lambda: cluster.job_state(seen.row.job_id) in ("CANCELLED", "COMPLETED"), 60, "the job to end")
    assert sorted(path.name for path in seen.folder.iterdir()) == ["end.json", "job.log"]
    assert story.alice.get("/user/alice/api/kernels").status != 200
    wait_for(lambda: seen.again().row.state == "ended", 30, "the session to be closed")
    assert seen.again().row.end_reason == "Stopped."
    assert story.hub.server("alice", "second")
    assert story.hub.server("bob")


def test_the_last_choice_is_remembered_and_a_new_start_is_a_new_session(story: Story) -> None:
    before = story.seen().row
    text = story.alice.get("/hub/spawn").body
    card = text[text.index('name="a100.gpus"') :]
    assert re.search(r'<option value="2"\s+selected', card[: card.index("</select>")])
    assert re.search(r'value="a100"[^>]*\schecked>', text)
    story.hub.api("POST", "/users/alice/server", {})  # no options: the last ones
    story.hub.wait_server("alice")
    after = story.seen().row
    assert after.id != before.id
    assert len(story.seen().server_environment().get("CUDA_VISIBLE_DEVICES", "").split(",")) == 2
    assert story.cell("alice", "print('again')").strip() == "again"


def test_the_late_end_of_a_session_does_not_affect_the_next_one(story: Story, cluster: Cluster) -> None:
    old = story.seen()
    cluster.freeze("slurmdbd")  # so that the end of the old session cannot be proved while the next one starts
    try:
        story.hub.stop_server("alice")
        wait_for(lambda: cluster.job_state(old.row.job_id) in ("CANCELLED", "COMPLETED"), 60, "the old job to end")
        (old.folder / "job.log").unlink()  # its last word would prove the end without accounting
        assert story.alice.post("/hub/spawn", {"profile": "cpu"}).status == 302
        story.hub.wait_server("alice")
        assert old.again().row.state != "ended"
    finally:
        cluster.thaw("slurmdbd")
    wait_for(lambda: old.again().row.state == "ended", 90, "the old session to be closed")
    time.sleep(1)
    assert story.seen().row.state == "running"
    assert story.cell("alice", "print('unharmed')").strip() == "unharmed"


def test_nobody_is_in_a_group_that_the_job_should_not_have(story: Story) -> None:
    pid = next(iter(story.seen("bob").processes()))
    status = Path(f"/proc/{pid}/status").read_text()
    groups = {int(g) for g in next(x for x in status.splitlines() if x.startswith("Groups:")).split()[1:]}
    mine = {pwd.getpwnam("bob").pw_gid, *(g.gr_gid for g in grp.getgrall() if "bob" in g.gr_mem)}
    assert groups <= mine
