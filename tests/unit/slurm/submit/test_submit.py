"""Sudo and direct: one document on stdin, one answer; refused for certain is told from "nobody knows"."""

from __future__ import annotations

import base64
import errno
import getpass
import io
import json
import os
import stat
import sys
import zlib
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from forged_slurm import ForgedSlurm

from carme_hub.domain.cluster.jobs import JobSpec
from carme_hub.domain.cluster.reasons import NO_WORKING_FOLDER, refusal_sentence
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.errors import SlurmRejected, SlurmUnreachable
from carme_hub.paths import share_folder
from carme_hub.slurm.command import Answer, Commands
from carme_hub.slurm.submit import as_user
from carme_hub.slurm.submit.refusals import refused_by_number
from carme_hub.slurm.submit.submitters import DirectSubmitter, SudoSubmitter, document, job_id

SPEC = JobSpec(
    name="carme-0f9a",
    user=getpass.getuser(),
    script="#!/bin/sh\necho it's $ok\n",
    data=b'{"secret": "token"}\x00\xff',
    session_folder="/nowhere",
    gpus=Gpus("a100", 2),
    cpus=4,
    memory_mib=2048,
    time_limit=90,
    account="science",
    partition="main",
    reservation="course",
    environment={"CARME_SESSION": "0f9a"},
    extra={"constraint": "fast&big", "exclusive": ""},
)


def test_the_document_holds_everything_but_never_the_data_in_clear() -> None:
    read = json.loads(document(SPEC))
    assert set(read) == {"spec", "data"}
    assert base64.b64decode(read["data"]) == SPEC.data
    assert set(read["spec"]) == set(JobSpec.__dataclass_fields__) - {"data", "nice", "nodes", "exclude", "node"}
    assert json.loads(document(replace(SPEC, nice=60)))["spec"]["nice"] == 60
    assert json.loads(document(replace(SPEC, nodes=2)))["spec"]["nodes"] == 2
    assert read["spec"]["gpus"] == {"type": "a100", "count": 2}


def test_gpus_of_several_nodes_are_asked_for_node_by_node() -> None:
    options = as_user.sbatch_options(json.loads(document(replace(SPEC, nodes=2)))["spec"], "/home/alice")
    assert {"--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--gres=gpu:a100:1", "--mem=2048M"} <= set(options)
    options = as_user.sbatch_options(json.loads(document(SPEC))["spec"], "/home/alice")
    assert {"--nodes=1", "--ntasks=1"} <= set(options)
    assert not any("per-node" in option for option in options)
    with pytest.raises(ValueError, match="2 × a100 cannot be the same number on each of 3 nodes"):
        _ = replace(SPEC, nodes=3).gpus_per_node


def test_the_options_of_sbatch() -> None:
    options = as_user.sbatch_options(json.loads(document(SPEC))["spec"], "/home/alice")
    assert options[:2] == ["--constraint=fast&big", "--exclusive"]
    for wanted in (
        "--no-requeue",
        "--gres=gpu:a100:2",
        "--time=90",
        "--mem=2048M",
        "--cpus-per-task=4",
        "--account=science",
        "--partition=main",
        "--reservation=course",
        "--output=/dev/null",
        "--chdir=/home/alice",
    ):
        assert wanted in options
    assert not any("qos" in option or "nice" in option for option in options)
    nice = as_user.sbatch_options(json.loads(document(replace(SPEC, nice=60)))["spec"], "/home/alice")
    assert nice == [*options, "--nice=60"]
    without = as_user.sbatch_options(json.loads(document(replace(SPEC, exclude="n1,n2")))["spec"], "/home/alice")
    assert without == [*options, "--exclude=n1,n2"]
    there = as_user.sbatch_options(json.loads(document(replace(SPEC, node="n1")))["spec"], "/home/alice")
    assert there == [*options, "--nodelist=n1"]
    listed = "carme-0123456789abcdef-0,carme-0123456789abcdef-1"
    several = as_user.sbatch_options(json.loads(document(replace(SPEC, reservation=listed)))["spec"], "/home/alice")
    assert f"--reservation={listed}" in several
    plain = replace(SPEC, gpus=Gpus(), extra={"job-name": "other"})
    options = as_user.sbatch_options(json.loads(document(plain))["spec"], "/home/alice")
    assert not any("gres" in option for option in options)
    assert options.index("--job-name=other") < options.index("--job-name=carme-0f9a")


def test_the_data_file_is_for_its_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "carme" / "sessions" / "0f9a"
    old = os.umask(0)
    try:
        as_user.write_data(str(folder), b"one")
        as_user.write_data(str(folder), b"two")
    finally:
        os.umask(old)
    assert (folder / "data.json").read_bytes() == b"two"
    assert stat.S_IMODE((folder / "data.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_link_in_the_place_of_the_data_file_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "data.json").symlink_to(victim)
    as_user.write_data(str(tmp_path), b"new")
    assert victim.read_text() == "mine"


_FAILED = "sbatch: error: Batch job submission failed: "


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer(2, "", json.dumps({"error": _FAILED + "Socket timed out on send/recv operation"})), SlurmUnreachable),
        (Answer(2, "", json.dumps({"error": _FAILED + "Unable to contact slurm controller"})), SlurmUnreachable),
        (Answer(2, "", json.dumps({"error": _FAILED + "Words nobody has seen"})), SlurmUnreachable),
        (Answer(2, "", json.dumps({"error": _FAILED + "Invalid qos specification"})), SlurmRejected),
        (
            Answer(
                2,
                "",
                json.dumps(
                    {
                        "error": "sbatch: error: QOSMaxGRESPerJob\n" + _FAILED + "Job violates accounting/QOS policy "
                        "(job submit limit, user's size and/or time limits)"
                    }
                ),
            ),
            SlurmRejected,
        ),
        (Answer(1, "", json.dumps({"error": "the session folder cannot be written"})), SlurmRejected),
        (Answer(1, "", "Traceback (most recent call last): …"), SlurmUnreachable),
        (Answer(-9, "", ""), SlurmUnreachable),
        (Answer(1, "", "sudo: a password is required"), SlurmRejected),
        (Answer(1, "", "sudo: unable to resolve host hub: …\nsudo: a password is required"), SlurmRejected),
        (
            Answer(
                2,
                "",
                "sudo: unable to resolve host hub: …\n"
                + json.dumps({"error": _FAILED + "Socket timed out on send/recv operation"}),
            ),
            SlurmUnreachable,
        ),
        (Answer(1, "", "sudo: unable to resolve host hub: …\nTraceback (most recent call last): …"), SlurmUnreachable),
        (Answer(-9, "", "sudo: unable to resolve host hub: …"), SlurmUnreachable),
        (Answer(2, "", "sudo: unable to resolve host hub: …"), SlurmUnreachable),
        (Answer(0, "", ""), SlurmUnreachable),
        (Answer(0, "Submitted", ""), SlurmUnreachable),
        (Answer(0, "0", ""), SlurmUnreachable),
    ],
)
def test_only_a_certain_refusal_is_a_refusal(answer: Answer, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        job_id(answer)
    if isinstance(caught.value, SlurmRejected) and "QOSMax" in answer.err:
        assert "QOSMaxGRESPerJob" in caught.value.message


def test_a_job_id_with_and_without_the_clusters_name() -> None:
    assert job_id(Answer(0, "42\n", "")) == 42
    assert job_id(Answer(0, "42;lab\n", "sbatch: a warning")) == 42


@pytest.mark.parametrize(("code", "refused"), [(2045, True), (2000, True), (1800, False), (5005, False), (-1, False)])
def test_error_numbers(code: int, refused: bool) -> None:
    assert refused_by_number(code) is refused


async def test_sudo_gets_fixed_words_and_the_document_on_stdin(forged: ForgedSlurm, tmp_path: Path) -> None:
    forged.say("sudo", "17\n", before=f"cat > {tmp_path}/stdin")
    commands = Commands()
    commands.environment = lambda: {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}  # type: ignore[method-assign]
    submitter = SudoSubmitter((str(tmp_path / "carme-submit"),), commands)
    os.environ["PATH"], old = f"{tmp_path}/bin:{os.environ['PATH']}", os.environ["PATH"]
    try:
        assert await submitter.submit(SPEC) == 17
    finally:
        os.environ["PATH"] = old
    assert forged.calls("sudo") == [f"-n -u {SPEC.user} {tmp_path}/carme-submit"]
    assert (tmp_path / "stdin").read_bytes() == document(SPEC)


@pytest.fixture
def ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the hub ran as the user who runs the tests, and that were an ordinary one."""
    monkeypatch.setattr(os, "geteuid", lambda: 4001)


@pytest.mark.usefixtures("ordinary")
async def test_direct_writes_the_file_and_submits_with_a_clean_environment(
    forged: ForgedSlurm, commands: Commands, tmp_path: Path
) -> None:
    forged.say("sbatch", "42\n", before=f"cat > {tmp_path}/stdin; env > {tmp_path}/env")
    folder = tmp_path / "sessions" / "0f9a"
    assert await DirectSubmitter(commands).submit(replace(SPEC, session_folder=str(folder))) == 42
    assert (folder / "data.json").read_bytes() == SPEC.data
    assert (tmp_path / "stdin").read_text() == SPEC.script
    seen = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines() if "=" in line)
    assert seen["CARME_SESSION"] == "0f9a"
    assert seen["PATH"] == as_user.JOB_PATH
    allowed = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "SLURM_CONF", "CARME_SESSION", "PWD", "_", "SHLVL"}
    assert set(seen) <= allowed | {"LC_CTYPE"}
    assert "token" not in " ".join(forged.calls("sbatch"))


def test_direct_passes_the_data_in_the_jobs_environment_where_the_home_is_full(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[dict[str, str]] = []

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def sbatch(*_: object, env: dict[str, str], **_more: object) -> SimpleNamespace:
        seen.append(env)
        return SimpleNamespace(returncode=0, stdout="42\n", stderr="")

    monkeypatch.setattr(as_user, "write_data", full)
    monkeypatch.setattr(as_user.subprocess, "run", sbatch)
    monkeypatch.setattr(sys, "stdin", io.StringIO(document(SPEC).decode()))
    assert (as_user.main(), capsys.readouterr().out) == (0, "42\n")
    assert zlib.decompress(base64.b64decode(seen[0]["CARME_DATA"])) == SPEC.data


@pytest.mark.usefixtures("ordinary")
async def test_direct_says_when_nobody_knows(forged: ForgedSlurm, commands: Commands, tmp_path: Path) -> None:
    spec = replace(SPEC, session_folder=str(tmp_path / "s"))
    forged.say("sbatch", err=_FAILED + "Socket timed out on send/recv operation", code=1)
    with pytest.raises(SlurmUnreachable, match="Socket timed out"):
        await DirectSubmitter(commands).submit(spec)
    forged.say("sbatch", err=_FAILED + "Invalid partition name specified", code=1)
    with pytest.raises(SlurmRejected, match="Invalid partition name"):
        await DirectSubmitter(commands).submit(spec)


@pytest.mark.usefixtures("ordinary")
async def test_direct_is_for_this_user_only(commands: Commands) -> None:
    with pytest.raises(SlurmRejected, match="submit_via"):
        await DirectSubmitter(commands).submit(replace(SPEC, user="bob"))


async def test_nothing_is_ever_submitted_as_root(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(SlurmRejected, match="root"):
        await DirectSubmitter(commands).submit(replace(SPEC, user="root"))


def _asking_for(home: Path, folder: str, **more: object) -> tuple[dict[str, object], bytes]:
    own = {"folder": f"{home}/{folder}", "make_folder": more.pop("make", False)}
    data = {"singleuser": own, "binds": more.pop("binds", [["/scratch", "/scratch", "rw"]])}
    return {"session_folder": f"{home}/.carme/sessions/0f9a", **more}, json.dumps(data).encode()


@pytest.mark.parametrize("program", ["deliver", "carme-submit"])
def test_a_working_folder_that_is_certainly_missing_is_refused_before_a_job_is_started(
    program: str, tmp_path: Path
) -> None:
    lacks = as_user.lacks_folder if program == "deliver" else _helper().lacks_folder
    home = tmp_path / "home"
    (home / "there").mkdir(parents=True)
    (home / "away").symlink_to("/scratch/of-the-nodes")
    for folder in ("a100", "%n", "-0", "there/below"):
        assert lacks(*_asking_for(home, folder), str(home)), folder
        assert not lacks(*_asking_for(home, folder, make=True), str(home)), "it is to be made"
        assert not lacks(*_asking_for(home, folder, session_folder="/scratch/x"), str(home)), "no home of the nodes"
        lent = [["/scratch/a", f"{home}/{folder}", "rw"]]
        assert not lacks(*_asking_for(home, folder, binds=lent), str(home)), "the container has it"
        lent = [["/other", str(tmp_path), "rw"]]
        assert not lacks(*_asking_for(home, folder, binds=lent), str(home)), "the container has another home"
        same = [[str(tmp_path), str(tmp_path), "rw"]]
        assert lacks(*_asking_for(home, folder, binds=same), str(home))
    for folder in ("there", "away", "away/below", "../elsewhere"):
        assert not lacks(*_asking_for(home, folder), str(home)), folder
    spec, _ = _asking_for(home, "a100")
    for other in (b"", b"[]", b"{}", b'{"singleuser": {"folder": "/scratch/x", "make_folder": false}, "binds": []}'):
        assert not lacks(spec, other, str(home)), other


def test_both_programs_say_the_words_that_the_hub_makes_a_sentence_of() -> None:
    assert as_user.NO_WORKING_FOLDER == NO_WORKING_FOLDER
    assert f'No("{NO_WORKING_FOLDER}")' in (share_folder() / "libexec/carme-submit").read_text()
    assert refusal_sentence(NO_WORKING_FOLDER, "a100").startswith("The working folder a100 does not exist.")


def _helper() -> ModuleType:
    loader = SourceFileLoader("carme_submit", str(share_folder() / "libexec/carme-submit"))
    module = ModuleType(loader.name)
    code = loader.get_data(loader.path)
    exec(compile(code, loader.path, "exec"), module.__dict__)
    return module
