"""Slurm's limits as quotas: only what means the same, and what Carme Hub has not written itself."""

from __future__ import annotations

from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.domain.quotas.exchange.from_slurm import rows_of_slurm
from carme_hub.domain.quotas.exchange.rows import read_rows
from carme_hub.domain.quotas.rules import Person
from carme_hub.domain.quotas.sacctmgr_argv import Entity
from carme_hub.domain.quotas.slurm_limits import LimitSettings, State, plan

TRES = frozenset({"cpu", "gres/gpu", "gres/gpu:a100", "gres/gpu:h100"})
LIMITS = {
    (Entity.ACCOUNT, "root"): {"GrpTRES/gres/gpu": "1"},
    (Entity.ACCOUNT, "physics"): {
        **{"GrpTRES/gres/gpu": "8", "GrpTRESMins/gres/gpu": "6000", "MaxTRES/gres/gpu": "4", "MaxWall": "1440"},
        **{
            "GrpJobs": "20",
            "GrpTRES/gres/gpu:h100": "0",
            "GrpTRES/cpu": "100",
            "QOS": "normal",
            "DefaultQOS": "normal",
        },
    },
    (Entity.ACCOUNT, "chem"): {"MaxJobs": "5", "GrpTRES/gres/gpu": "2"},
    (Entity.USER, "physics/alice"): {"MaxJobs": "3", "GrpJobs": "2"},
    (Entity.USER, "physics/bob"): {"MaxJobs": "3"},
    (Entity.USER, "chem/bob"): {"GrpTRES/gres/gpu": "1"},
    (Entity.USER, "chem/carol/gpu"): {"MaxJobs": "1"},
    (Entity.QOS, "high"): {"Name": "yes", "MaxWall": "60", "Flags/NoDecay": "yes"},
}
STATE = State("lab", LIMITS, TRES)


def test_limits_become_quotas_where_a_quota_means_the_same() -> None:
    found = rows_of_slurm(STATE, {"account chem GrpTRES/gres/gpu": "2"})
    quotas = {quota.id: quota for quota in read_rows(found.rows, "UTC").quotas}
    assert sorted(quotas) == ["slurm-account-physics", "slurm-user-alice"]
    physics = quotas["slurm-account-physics"]
    assert (physics.concurrent_gpus, physics.session_gpus, physics.sessions) == (8, 4, 20)
    assert (physics.gpu_time, physics.time_limit, physics.gpu_types) == (100 * GPU_HOUR, 86_400, ("a100",))
    assert quotas["slurm-user-alice"].sessions == 2
    assert found.left_out == (
        "1 limit GrpTRES of cpu: no rule of a policy means the same.",
        "1 limit MaxJobs of account: no rule of a policy means the same.",
        "1 limit of a QOS: no rule of a policy is about one.",
        "2 limits of a user in one of several accounts: a rule on a user counts in all of them.",
        "1 limit of a user in one partition: no rule of a policy is about one.",
    )


def test_what_was_imported_is_what_the_mirror_would_write() -> None:
    limits = {
        (Entity.ACCOUNT, "physics"): {
            "GrpTRES/gres/gpu": "8",
            "MaxTRES/gres/gpu": "4",
            "MaxWall": "1440",
            "GrpJobs": "20",
        }
    }
    limits |= {(Entity.USER, "physics/alice"): {"GrpTRES/gres/gpu": "1", "MaxJobs": "2"}}
    state = State("lab", limits, TRES)
    quotas = read_rows(rows_of_slurm(state, {}).rows, "UTC").quotas
    people = {"alice": Person("alice")}
    found = plan(quotas, state, now=0.0, people=people, limit_settings=LimitSettings(every_job=True))
    assert (found.changes, found.drift) == ((), ())


def test_a_value_that_is_no_number_is_left_out() -> None:
    state = State("lab", {(Entity.ACCOUNT, "a"): {"GrpTRES/gres/gpu": "8", "MaxTRES/gres/gpu": "N"}}, TRES)
    found = rows_of_slurm(state, {})
    assert [dict(row.data) for row in found.rows] == [{"id": "slurm-account-a", "account": "a", "concurrent_gpus": 8}]
    assert found.left_out == ("1 limit MaxTRES with a value that is no number.",)
