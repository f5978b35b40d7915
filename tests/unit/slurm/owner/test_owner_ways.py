"""A command runs as the user of a job in each of the three ways, and no secret is in a command line."""

from __future__ import annotations

import getpass
import json
import os
from pathlib import Path
from typing import Any

import pytest
from forged_slurm import ForgedSlurm

from carme_hub.domain.cluster.own_jobs.acts import Act
from carme_hub.domain.cluster.own_jobs.resubmission import Resubmission
from carme_hub.domain.cluster.own_jobs.targets import Target
from carme_hub.errors import SlurmRejected, SlurmUnreachable
from carme_hub.slurm.command import Commands
from carme_hub.slurm.owner.jobs import OwnJobs
from carme_hub.slurm.owner.ways import FileNotRead, HelperOwner, NoOwner, TokenOwner
from carme_hub.slurm.settings import CarmeSlurm

ME = getpass.getuser()
JOB = Resubmission(ME, "#!/bin/sh\n", {"time": "5"}, ("a b",))


@pytest.fixture
def ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the hub ran as the user who runs the tests, and that were an ordinary one."""
    monkeypatch.setattr(os, "geteuid", lambda: 4001)


@pytest.fixture
def sudo(forged: ForgedSlurm, monkeypatch: pytest.MonkeyPatch) -> HelperOwner:
    monkeypatch.setenv("PATH", f"{forged.prefix}/bin:{os.environ['PATH']}")
    commands = Commands(timeout=30)
    return HelperOwner(("/usr/local/libexec/carme-jobs",), commands)


@pytest.mark.usefixtures("ordinary")
async def test_direct_acts_as_this_user_and_as_nobody_else(forged: ForgedSlurm, commands: Commands) -> None:
    forged.say("scontrol", err="slurm_update error: Access/permission denied", code=1)
    jobs = OwnJobs(commands, HelperOwner((), commands))
    said = await jobs.act(ME, Target(9, "3"), Act.RELEASE)
    assert "Access/permission denied" in said
    assert forged.calls("scontrol") == ["release 9_3"]
    with pytest.raises(SlurmRejected, match="cannot act for bob"):
        await jobs.act("bob", Target(9), Act.CANCEL)


@pytest.mark.usefixtures("ordinary")
async def test_each_act_is_one_command_on_exactly_that_job(forged: ForgedSlurm, commands: Commands) -> None:
    for name in ("scontrol", "scancel"):
        forged.say(name)
    jobs = OwnJobs(commands, HelperOwner((), commands))
    for act in Act:
        assert await jobs.act(ME, Target(9, "3-5"), act, 30) == ""
    assert forged.calls("scancel") == ["9_[3-5]"]
    assert forged.calls("scontrol") == [
        *("hold 9_[3-5]", "release 9_[3-5]", "requeue 9_[3-5]", "update JobId=9_[3-5] TimeLimit=30")
    ]


@pytest.mark.usefixtures("ordinary")
async def test_direct_submits_and_reads_files(forged: ForgedSlurm, commands: Commands, tmp_path: Path) -> None:
    forged.say("sbatch", "42\n")
    jobs = OwnJobs(commands, HelperOwner((), commands))
    assert await jobs.submit(JOB) == 42
    [call] = forged.calls("sbatch")
    assert call.startswith("--parsable --time=5 /proc/self/fd/")
    assert call.endswith(" a b")
    (tmp_path / "out.txt").write_text("hello")
    about, raw = await jobs.file(ME, {"path": f"{tmp_path}/out.txt", "offset": 1, "length": 9})
    assert (about["size"], raw) == (5, b"ello")
    with pytest.raises(FileNotRead) as caught:
        await jobs.file(ME, {"path": f"{tmp_path}/none", "offset": 0, "length": 9})
    assert caught.value.reason == "missing"


@pytest.mark.usefixtures("ordinary")
async def test_a_script_is_read_or_there_is_none_or_it_is_not_known(forged: ForgedSlurm, commands: Commands) -> None:
    jobs = OwnJobs(commands, HelperOwner((), commands))
    forged.say("scontrol", "#!/bin/sh\necho\n")
    assert await jobs.script(ME, 9) == "#!/bin/sh\necho\n"
    forged.say("scontrol", err="job script retrieval failed: Invalid job id specified", code=1)
    assert await jobs.script(ME, 9) == ""
    forged.say("scontrol", err="job script retrieval failed: Unable to contact slurm controller", code=1)
    with pytest.raises(SlurmUnreachable):
        await jobs.script(ME, 9)
    forged.say("scontrol", before="printf '#!/bin/sh\\necho \\377\\n'")
    with pytest.raises(SlurmRejected, match="not UTF-8"):
        await jobs.script(ME, 9)


@pytest.mark.usefixtures("ordinary")
async def test_a_submission_that_slurm_refuses_is_told_apart_from_one_that_nobody_knows(
    forged: ForgedSlurm, commands: Commands
) -> None:
    owner = HelperOwner((), commands)
    forged.say("sbatch", err="sbatch: error: Batch job submission failed: Invalid partition name specified", code=1)
    with pytest.raises(SlurmRejected, match="Invalid partition"):
        await owner.submit(JOB)
    forged.say("sbatch", err="sbatch: error: Batch job submission failed: Socket timed out", code=1)
    with pytest.raises(SlurmUnreachable):
        await owner.submit(JOB)


async def test_sudo_gets_fixed_words_and_one_document(forged: ForgedSlurm, sudo: HelperOwner, tmp_path: Path) -> None:
    forged.say("sudo", before=f"cat > {tmp_path}/stdin")
    await sudo.run("alice", "scontrol", "hold", "9")
    assert forged.calls("sudo") == ["-n -u alice /usr/local/libexec/carme-jobs"]
    assert json.loads((tmp_path / "stdin").read_text()) == {"user": "alice", "run": ["scontrol", "hold", "9"]}


@pytest.mark.parametrize(
    ("err", "code", "error", "words"),
    [
        ('{"error": "alice is not in the group", "reason": "refused"}', 64, SlurmRejected, "not in the group"),
        ("sudo: a password is required", 1, SlurmRejected, "a password is required"),
        ("Traceback", 64, SlurmRejected, "Traceback"),
    ],
)
async def test_what_helper_and_sudo_refuse_was_not_done(
    forged: ForgedSlurm, sudo: HelperOwner, err: str, code: int, error: type[Exception], words: str
) -> None:
    forged.say("sudo", err=err, code=code)
    with pytest.raises(error, match=words):
        await sudo.run("alice", "scancel", "9")


class SubmitterWithTokens:
    """Has a token for everybody, and notes what was submitted."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []

    async def token_of(self, user: str) -> str:
        return f"token-of-{user}"

    async def submit_body(self, user: str, body_of: Any) -> tuple[int, bool]:
        self.bodies.append((user, body_of("/home/alice", False)))
        return 42, False


async def test_rest_acts_with_the_users_token_which_only_the_command_sees(
    forged: ForgedSlurm, commands: Commands, tmp_path: Path
) -> None:
    forged.say("scontrol", before=f"env > {tmp_path}/env")
    submitter = SubmitterWithTokens()
    owner = TokenOwner(submitter, commands, None)  # type: ignore[arg-type]
    await owner.run("alice", "scontrol", "hold", "9")
    assert "SLURM_JWT=token-of-alice" in (tmp_path / "env").read_text()
    assert forged.calls("scontrol") == ["hold 9"]
    assert await owner.submit(JOB) == 42
    [(user, body)] = submitter.bodies
    assert (user, body["script"], body["job"]["time_limit"]) == (ME, "#!/bin/sh\nset -- 'a b'\n", 5)
    assert not owner.reads_script_options


async def test_without_a_helper_files_are_not_read_and_it_says_so(commands: Commands) -> None:
    for owner in (TokenOwner(SubmitterWithTokens(), commands, None), NoOwner()):  # type: ignore[arg-type]
        with pytest.raises(FileNotRead) as caught:
            await owner.file("alice", {"path": "/x", "offset": 0, "length": 1})
        assert caught.value.reason == "no-helper"
    with pytest.raises(SlurmRejected, match="jobs_command"):
        await NoOwner().run("alice", "scancel", "9")


def test_settings_choose_the_way() -> None:
    assert CarmeSlurm().own_jobs().reads_files
    sudo = CarmeSlurm(submit_via="sudo", submit_command=["/x/carme-submit"])
    assert not sudo.own_jobs().reads_files
    sudo.jobs_command = ["/x/carme-jobs"]
    assert sudo.own_jobs().reads_files
    rest = CarmeSlurm(submit_via="rest", rest_url="unix:///x", token_command=["/x/token"])
    assert not rest.own_jobs().reads_files
    assert not rest.own_jobs().reads_script_options
