"""The doctor on Slurm: each unsafe setting is named, a safe cluster is left alone, silence is no verdict."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from traitlets.config import Config

from carme_hub.cli.doctor import policy as doctor_policy
from carme_hub.cli.doctor import slurm
from carme_hub.cli.doctor.findings import Level
from carme_hub.cli.doctor.slurm import SlurmFacts, check, parse, read_facts

SAFE = {
    "SlurmdTimeout": "900 sec",
    "MinJobAge": "300 sec",
    "JobRequeue": "0",
    "ProctrackType": "proctrack/cgroup",
    "TaskPlugin": "task/cgroup,task/affinity",
    "ConstrainDevices": "yes",
    "AccountingStorageEnforce": "associations,limits,qos,safe",
    "AccountingStorageType": "accounting_storage/slurmdbd",
    "AccountingStorageTRES": "cpu,mem,energy,node,billing,gres/gpu,gres/gpu:a100,gres/gpu:1g.10gb,gres/shard",
    "AccountingStoreFlags": "",
    "JobSubmitPlugins": "lua",
    "PrivateData": "accounts,jobs,reservations,usage,users",
}
DBD = {"PrivateData": "accounts,jobs,reservations,usage,users"}
GRES = ("gpu:a100:4(S:0-1),shard:a100:16", "gpu:1g.10gb:7", "(null)")


def found(config: dict[str, str] | None = None, dbd: dict[str, str] | None = None, gres: object = GRES) -> set[str]:
    facts = SlurmFacts({**SAFE, **(config or {})}, DBD if dbd is None else dbd, gres)  # type: ignore[arg-type]
    return {finding.setting for finding in check(facts) if finding.level is not Level.ADVICE}


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "_key", lambda what, key: iter(()))


def test_a_safe_cluster_has_nothing_to_mend() -> None:
    assert list(check(SlurmFacts(SAFE, DBD, GRES))) == []


@pytest.mark.parametrize(
    ("setting", "value", "named"),
    [
        ("SlurmdTimeout", "300 sec", "SlurmdTimeout"),
        ("MinJobAge", "2 sec", "MinJobAge"),
        ("ProctrackType", "proctrack/pgid", "ProctrackType"),
        ("TaskPlugin", "task/affinity", "TaskPlugin"),
        ("ConstrainDevices", "no", "ConstrainDevices"),
        ("AccountingStorageEnforce", "none", "AccountingStorageEnforce"),
        ("AccountingStorageEnforce", "associations,limits,qos", "AccountingStorageEnforce"),
        ("AccountingStorageType", "accounting_storage/none", "AccountingStorageType"),
        ("AccountingStorageTRES", "cpu,mem,gres/gpu", "AccountingStorageTRES"),
        ("AccountingStorageTRES", "gres/gpu,gres/gpu:a100,gres/gpu:1g.10gb", "AccountingStorageTRES"),
        ("AccountingStoreFlags", "job_comment,job_env", "AccountingStoreFlags"),
        ("AccountingStoreFlags", "job_script", "AccountingStoreFlags"),
        ("JobSubmitPlugins", "", "JobSubmitPlugins"),
        ("PrivateData", "none", "PrivateData in slurm.conf"),
        ("AuthAltTypes", "auth/jwt", "DisableRootJobs"),
    ],
)
def test_each_unsafe_setting_is_named(setting: str, value: str, named: str) -> None:
    assert found({setting: value}) == {named}


def test_private_data_is_needed_in_the_databases_daemon_too() -> None:
    assert found(dbd={"PrivateData": "jobs"}) == {"PrivateData in slurmdbd.conf"}


@pytest.mark.parametrize("gres", ["gpu:4", "gpu", "gpu:8(S:0),shard:4"])
def test_untyped_gpus_are_named(gres: str) -> None:
    assert found(gres=(gres,)) == {"Gres"}


def test_a_cluster_without_gpus_needs_no_gpu_settings() -> None:
    assert found({"JobSubmitPlugins": "", "TaskPlugin": "task/none"}, gres=("(null)",)) == set()


@pytest.mark.parametrize("value", ["all", "ALL"])
def test_all_is_every_word(value: str) -> None:
    assert found({"AccountingStorageEnforce": value, "PrivateData": value}) == set()


def test_never_giving_a_node_up_is_safe() -> None:
    assert found({"SlurmdTimeout": "0 sec"}) == set()


def test_slurms_words_are_read() -> None:
    text = "Configuration data\nA  = (null)\nB-c   = x=y\n\nCgroup Support Configuration:\nConstrainDevices = yes\n"
    assert parse(text) == {"A": "", "B-c": "x=y", "ConstrainDevices": "yes"}


def command(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def test_a_silent_slurm_is_unknown_and_not_unsafe(tmp_path: Path) -> None:
    command(tmp_path, "scontrol", "echo 'slurm_load_ctl_conf error: Unable to contact' >&2; exit 1")
    findings = list(check(read_facts(str(tmp_path), {"PATH": os.defpath})))
    assert [(finding.level, finding.setting) for finding in findings] == [(Level.UNKNOWN, "slurm.conf")]
    assert "Unable to contact" in findings[0].why


def test_no_slurm_at_all_is_unknown(tmp_path: Path) -> None:
    assert [f.level for f in check(read_facts(str(tmp_path), {}))] == [Level.UNKNOWN]


def test_a_slurm_that_hangs_is_unknown(tmp_path: Path) -> None:
    command(tmp_path, "scontrol", "exec sleep 30")
    findings = list(check(read_facts(str(tmp_path), {"PATH": os.environ["PATH"]}, time_limit=0.2)))
    assert [f.level for f in findings] == [Level.UNKNOWN]
    assert "no answer within" in findings[0].why


def test_a_silent_database_is_unknown_and_the_rest_is_judged(tmp_path: Path) -> None:
    lines = "\n".join(f"{name} = {value or '(null)'}" for name, value in {**SAFE, "SlurmdTimeout": "30 sec"}.items())
    (tmp_path / "config").write_text(lines)
    command(tmp_path, "scontrol", f"cat {tmp_path}/config")
    command(tmp_path, "sacctmgr", "exit 1")
    command(tmp_path, "sinfo", "echo node1 gpu:a100:4; echo node1 gpu:a100:4; echo node2 gpu:1g.10gb:7")
    findings = list(check(read_facts(str(tmp_path), {"PATH": os.environ["PATH"]})))
    assert {(f.level, f.setting) for f in findings} == {
        (Level.UNSAFE, "SlurmdTimeout"),
        (Level.UNKNOWN, "slurmdbd.conf"),
    }


def test_the_qos_of_a_soft_limit_has_to_be_there(tmp_path: Path) -> None:
    policy = {"quotas": [{"id": "w", "user": "*", "gpu_time": 1, "window": "week", "soft": True, "soft_qos": "Low"}]}
    wanted = doctor_policy.soft_qos(Config({"CarmeQuotas": {"enabled": True, "policy": policy}}))
    assert wanted == ("low",)  # as Slurm keeps it
    assert doctor_policy.soft_qos(Config({"CarmeQuotas": {"policy": policy}})) == ()  # nothing asks for it
    (tmp_path / "config").write_text("\n".join(f"{name} = {value or '(null)'}" for name, value in SAFE.items()))
    command(tmp_path, "scontrol", f"cat {tmp_path}/config")
    command(tmp_path, "sinfo", "echo node1 gpu:a100:4; echo node1 gpu:a100:4; echo node2 gpu:1g.10gb:7")
    dbd = "SlurmDBD configuration:\nPrivateData = accounts,jobs,reservations,usage,users"
    for names, level in (("normal", Level.UNSAFE), ("normal\nlow", None), ("", Level.UNKNOWN)):
        command(tmp_path, "sacctmgr", f'[ "$3" = show ] && echo "{names}" || echo "{dbd}"')
        facts = read_facts(str(tmp_path), {"PATH": os.environ["PATH"]})
        assert [(f.setting, f.level) for f in check(facts, wanted)] == ([("soft_qos", level)] if level else [])


def test_the_licences_that_gpus_are_counted_by_have_to_be_as_many(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("\n".join(f"{name} = {value or '(null)'}" for name, value in SAFE.items()))
    dbd = "SlurmDBD configuration:\nPrivateData = accounts,jobs,reservations,usage,users"
    command(tmp_path, "sacctmgr", f'[ "$3" = show ] && echo normal || echo "{dbd}"')
    command(
        tmp_path, "sinfo", "echo node1 'gpu:a100:4(S:0),shard:a100:8'; echo node1 gpu:a100:4; echo node2 gpu:a100:4"
    )
    calendar = {"enabled": True, "keep": "licenses", "licenses": {"a100": "gpu_a100"}}
    wanted = doctor_policy.licenses(Config({"CarmeReservations": calendar}))
    assert doctor_policy.licenses(Config({"CarmeReservations": {**calendar, "keep": "auto"}})) == {}

    def judged(licences: str) -> list[tuple[Level, str, str]]:
        command(tmp_path, "scontrol", f'[ "$2" = licenses ] && {licences} || cat {tmp_path}/config')
        facts = read_facts(str(tmp_path), {"PATH": os.environ["PATH"]})
        assert list(check(facts)) == []
        return [(each.level, each.why, each.mend) for each in check(facts, (), wanted)]

    assert judged("echo LicenseName=gpu_a100 Total=8 Used=0 Free=8 Reserved=0 Remote=no") == []
    fix = "Licenses=gpu_a100:8 in slurm.conf"
    for total, words in ((7, "for 8 a100"), (9, "for only 8 a100")):
        ((level, why, mend),) = judged(f"echo LicenseName=gpu_a100 Total={total} Used=0")
        assert (level, mend, words in why) == (Level.UNSAFE, fix, True)
    assert judged("echo LicenseName=gpu_h100 Total=8 Used=0")[0][:2] == (
        *(Level.UNSAFE, "Slurm has no licence gpu_a100, so a100 cannot be booked."),
    )


def test_a_calendar_that_counts_without_licences_cannot_start() -> None:
    (found,) = doctor_policy.check(Config({"CarmeReservations": {"enabled": True, "keep": "licenses"}}))
    assert (found.setting, found.level, "needs a license" in found.why) == ("CarmeReservations", Level.UNSAFE, True)
    for wrong in ({"a100": "two words"}, {"a100": "gpus", "h100": "gpus"}):
        calendar = {"enabled": True, "keep": "licenses", "licenses": wrong}
        assert len(list(doctor_policy.check(Config({"CarmeReservations": calendar})))) == 1


def test_a_policy_that_cannot_be_read_is_named_with_its_place() -> None:
    [finding] = doctor_policy.check(Config({"CarmeQuotas": {"enabled": True, "policy": {"quota": []}}}))
    assert (finding.level, finding.setting) == (Level.UNSAFE, "CarmeQuotas")
    assert "Did you mean quotas?" in finding.why
    assert list(doctor_policy.check(Config())) == []


def test_rules_on_booking_that_do_nothing_are_named() -> None:
    def judged(on: bool, **policy: object) -> list[tuple[Level, str, str]]:
        quotas = {"enabled": True, "policy": policy}
        config = Config({"CarmeQuotas": quotas, "CarmeReservations": {"enabled": on}})
        return [(each.level, each.setting, each.value) for each in doctor_policy.check(config)]

    rules = [{"id": "b", "user": "*", "booking": {"length": "8h"}}]
    past = [{"start": "2020-12-24", "end": "2020-12-26", "reason": "Power."}]
    ahead = [{"start": "2020-12-24", "end": "2999-12-26", "reason": "Power."}]
    off = (Level.ADVICE, "CarmeReservations.enabled", "False")
    assert judged(False, quotas=rules) == judged(False, blackouts=ahead) == [off]
    assert judged(True, quotas=rules, blackouts=past) == [(Level.ADVICE, "blackouts", "blackouts[0]")]
    assert judged(True, quotas=rules, blackouts=ahead) == judged(False, quotas=[]) == []


def test_a_key_that_others_can_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    key = tmp_path / "jwt.key"
    key.write_text("key")
    key.chmod(0o644)
    config = {**SAFE, "AuthAltTypes": "auth/jwt", "DisableRootJobs": "Yes", "AuthAltParameters": f"jwt_key={key},x"}
    named = {finding.setting for finding in check(SlurmFacts(config, DBD, GRES))}
    assert str(key) in named
    key.chmod(0o600)
    if os.geteuid() == 0:
        assert str(key) not in {finding.setting for finding in check(SlurmFacts(config, DBD, GRES))}
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert str(key) in {finding.setting for finding in check(SlurmFacts(config, DBD, GRES))}


def test_a_calendar_that_cannot_start_is_a_finding_and_no_traceback() -> None:
    (found,) = doctor_policy.check(Config({"CarmeReservations": {"enabled": True, "share": 500}}))
    assert (found.setting, found.level) == ("CarmeReservations", Level.UNSAFE)
