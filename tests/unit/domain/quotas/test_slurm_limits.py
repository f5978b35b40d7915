"""The second fence: as tight as Slurm can be made, never tighter than the policy, and what others set is kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.domain.quotas.rules import Person, Quota, SubjectKind, Window
from carme_hub.domain.quotas.sacctmgr_argv import Target
from carme_hub.domain.quotas.slurm_limits import (
    AdminLevel,
    Budgets,
    Change,
    Entity,
    LimitSettings,
    Plan,
    State,
    commands,
    plan,
)

ACCOUNT, USER, QOS = Entity.ACCOUNT, Entity.USER, Entity.QOS
TRES = frozenset({"cpu", "gres/gpu", "gres/gpu:a100", "gres/gpu:h100"})
USUAL = {"QOS": "normal", "DefaultQOS": "normal"}


def state(changes: dict[Target, dict[str, str]] | None = None, tres: frozenset[str] = TRES) -> State:
    """Return two accounts, alice in both and bob in one, with nothing set but for the changes."""
    limits: dict[Target, dict[str, str]] = {
        (QOS, "normal"): {"Name": "yes"},
        (ACCOUNT, "root"): {},
        (USER, "root/root"): {},
        (ACCOUNT, "physics"): {},
        (ACCOUNT, "teaching"): {},
        (USER, "physics/alice"): {},
        (USER, "physics/bob"): {},
        (USER, "teaching/alice"): {},
    }
    return State("ada", {**limits, **(changes or {})}, tres)


def made(*quotas: Quota, have: State | None = None, **options: Any) -> Plan:
    return plan(quotas, have or state(), now=1000.0, **options)


def wishes(found: Plan) -> dict[str, str]:
    return {change.id: change.want for change in found.changes}


def test_concurrent_gpus_of_each_user_and_of_an_account() -> None:
    found = made(
        Quota("each", SubjectKind.USER, concurrent_gpus=4),
        Quota("bob", SubjectKind.USER, name="bob", concurrent_gpus=2),
        Quota("all", SubjectKind.ACCOUNT, name="physics", concurrent_gpus=6),
    )
    assert wishes(found) == {
        "account physics GrpTRES/gres/gpu": "6",
        "user physics/alice GrpTRES/gres/gpu": "4",
        "user physics/bob GrpTRES/gres/gpu": "2",
        "user teaching/alice GrpTRES/gres/gpu": "4",
    }
    assert {change.admin_level for change in found.changes} == {AdminLevel.OPERATOR}
    assert found.changes[0].argv == (
        *("sacctmgr", "-i", "modify", "account", "where", "name=physics", "cluster=ada"),
        *("set", "GrpTRES=gres/gpu=6"),
    )


def test_users_who_get_the_same_are_named_in_one_command() -> None:
    have = state({(USER, "physics/carol"): {}, (USER, "physics/dan/night"): {}})
    found = made(Quota("e", SubjectKind.USER, concurrent_gpus=4, gpu_types=("a100",)), have=have)
    said = [" ".join(argv[4:]) for argv in commands(found.changes, "ada")]
    assert said == [
        "where name=alice,bob,carol account=physics cluster=ada set GrpTRES=gres/gpu=4,gres/gpu:h100=0",
        "where name=dan account=physics cluster=ada partition=night set GrpTRES=gres/gpu=4,gres/gpu:h100=0",
        "where name=alice account=teaching cluster=ada set GrpTRES=gres/gpu=4,gres/gpu:h100=0",
    ]


def test_members_of_a_group_or_role_have_its_limits() -> None:
    people = {"alice": Person("alice", frozenset({"g"})), "bob": Person("bob", frozenset(), frozenset({"r"}))}
    found = made(
        Quota("g", SubjectKind.GROUP, name="g", concurrent_gpus=3),
        Quota("r", SubjectKind.ROLE, name="r", concurrent_gpus=1),
        Quota("t", SubjectKind.GROUP, name="g", together=True, concurrent_gpus=1),
        people=people,
    )
    assert wishes(found) == {
        "user physics/alice GrpTRES/gres/gpu": "3",
        "user physics/bob GrpTRES/gres/gpu": "1",
        "user teaching/alice GrpTRES/gres/gpu": "3",
    }
    assert [left.quota for left in found.unenforced] == ["t"]


def test_limits_of_sessions_are_left_out_unless_slurm_can_tell_sessions() -> None:
    rule = Quota("s", SubjectKind.USER, sessions=2, session_gpus=1, time_limit=3601)
    assert wishes(made(rule)) == {}
    assert "cannot tell a session" in made(rule).unenforced[0].reason
    everywhere = made(rule, limit_settings=LimitSettings(every_job=True))
    assert wishes(everywhere)["user physics/bob MaxWall"] == "61"  # whole minutes, never less than ours
    assert {key.split()[-1] for key in wishes(everywhere)} == {"MaxJobs", "MaxTRES/gres/gpu", "MaxWall"}
    own = made(rule, limit_settings=LimitSettings(session_qos="hub"))
    assert wishes(own) == {
        "qos hub Name": "yes",
        "qos hub MaxJobsPerUser": "2",
        "qos hub MaxTRES/gres/gpu": "1",
        "qos hub MaxWall": "61",
    }
    assert own.unenforced == ()
    assert {change.admin_level for change in own.changes} == {AdminLevel.ADMINISTRATOR}
    assert commands(own.changes, "ada") == (
        ("sacctmgr", "-i", "add", "qos", "hub"),
        (
            *("sacctmgr", "-i", "modify", "qos", "where", "name=hub", "set"),
            *("MaxJobsPerUser=2", "MaxTRESPerJob=gres/gpu=1", "MaxWall=61"),
        ),
    )


def test_a_users_own_limit_is_never_wider_than_the_accounts() -> None:
    found = made(
        Quota("u", SubjectKind.USER, name="bob", time_limit=7200),
        Quota("a", SubjectKind.ACCOUNT, name="physics", time_limit=3600),
        limit_settings=LimitSettings(every_job=True),
    )
    assert wishes(found) == {"account physics MaxWall": "60", "user physics/bob MaxWall": "60"}


def test_a_budget_goes_to_a_qos_without_decay_that_an_administrator_makes() -> None:
    found = made(budgets={"physics": 10 * GPU_HOUR}, limit_settings=LimitSettings(keep_qos=("soft",)))
    assert wishes(found) == {
        "qos carme-physics Name": "yes",
        "qos carme-physics Flags/NoDecay": "yes",
        "qos carme-physics GrpTRESMins/gres/gpu": "600",
        "account physics QOS": "carme-physics,soft",
        "account physics DefaultQOS": "carme-physics",
    }
    assert {change.admin_level for change in found.changes} == {AdminLevel.ADMINISTRATOR}
    assert [" ".join(argv[2:]) for argv in commands(found.changes, "ada")] == [
        "add qos carme-physics",
        "modify qos where name=carme-physics set Flags+=NoDecay GrpTRESMins=gres/gpu=600",
        "modify account where name=physics cluster=ada set QOS=carme-physics,soft DefaultQOS=carme-physics",
    ]
    there = state({(QOS, "carme-physics"): {"Name": "yes"}})
    needs = {c.key: c.admin_level for c in made(have=there, budgets={"physics": GPU_HOUR}).changes}
    assert needs["DefaultQOS"] is AdminLevel.OPERATOR  # it can be named now
    assert needs["GrpTRESMins/gres/gpu"] is AdminLevel.ADMINISTRATOR


def test_a_budget_in_money_is_the_most_gpu_minutes_that_it_can_buy() -> None:
    rule = Quota("b", SubjectKind.ACCOUNT, name="physics", gpu_time=GPU_HOUR + 1)
    for least, minutes in ((1000, "61"), (500, "121"), (2500, "25")):
        found = made(rule, limit_settings=LimitSettings(budgets=Budgets.ASSOCIATION, least_factor=least))
        assert wishes(found) == {"account physics GrpTRESMins/gres/gpu": minutes}
    assert wishes(made(rule, limit_settings=LimitSettings(budgets=Budgets.ASSOCIATION, least_factor=0))) == {}
    assert wishes(made(rule, limit_settings=LimitSettings(budgets=Budgets.NONE))) == {}


def test_who_has_a_qos_of_their_own_is_named() -> None:
    have = state({(USER, "physics/bob"): {"QOS": "normal,fast", "DefaultQOS": "fast"}})
    found = made(have=have, budgets={"physics": GPU_HOUR})
    assert ["physics/bob has QOS of its own (fast, normal)" in left.reason for left in found.unenforced] == [True]


def test_what_slurm_cannot_keep_is_said() -> None:
    found = made(
        Quota("week", SubjectKind.ACCOUNT, gpu_time=1, window=Window.WEEK),
        Quota("mine", SubjectKind.USER, gpu_time=1),
        Quota("starts", SubjectKind.USER, sessions_per_day=3),
        Quota("soft", SubjectKind.ACCOUNT, gpu_time=1, soft=True),
        Quota("past", SubjectKind.ACCOUNT, concurrent_gpus=1, window=Window.TERM, start=1.0, end=2.0),
    )
    assert found.changes == ()
    assert sorted(left.quota for left in found.unenforced) == ["mine", "starts", "week"]


def test_without_gpus_in_accounting_there_is_no_fence() -> None:
    found = made(Quota("each", SubjectKind.USER, concurrent_gpus=4), have=state(tres=frozenset({"cpu"})))
    assert found.changes == ()
    assert "AccountingStorageTRES" in found.unenforced[0].reason


LOW = Quota(
    "soft", SubjectKind.ACCOUNT, name="physics", gpu_time=GPU_HOUR, window=Window.WEEK, soft=True, soft_qos="low"
)


def allowing(low: bool, qos: bool = True, changes: dict[Target, dict[str, str]] | None = None) -> State:
    """Return the usual state, with or without the QOS low and leave for everybody to use it."""
    have = state({**({(QOS, "low"): {"Name": "yes"}} if qos else {}), **(changes or {})})
    may = frozenset({"normal", "low"} if low else {"normal"})
    return replace(have, may_use={target: may for target in have.limits if target[0] is not QOS})


def test_an_account_with_a_budget_keeps_the_qos_of_its_soft_limit() -> None:
    found = made(LOW, have=allowing(False), budgets={"physics": GPU_HOUR, "teaching": GPU_HOUR})
    wants = wishes(found)
    assert wants["account physics QOS"] == "carme-physics,low"
    assert wants["account teaching QOS"] == "carme-teaching"
    assert "Slurm does not count jobs with QOS low in physics's budget." in [left.reason for left in found.unenforced]


def test_users_of_a_soft_limit_bring_its_qos_to_each_of_their_accounts() -> None:
    people = {"alice": Person("alice", frozenset({"students"})), "bob": Person("bob")}
    rule = replace(LOW, who=SubjectKind.GROUP, name="students", together=True)
    budgets = {"physics": GPU_HOUR}
    found = made(rule, have=allowing(False), people=people, budgets=budgets)
    assert wishes(found)["account physics QOS"] == "carme-physics,low"
    assert wishes(found)["account teaching QOS/low"] == "yes"  # alice is in both
    without = made(rule, have=allowing(False), people={"bob": people["bob"]}, budgets=budgets)
    assert wishes(without)["account physics QOS"] == "carme-physics"


def test_without_a_budget_the_qos_of_a_soft_limit_is_added_and_nothing_taken() -> None:
    found = made(LOW, have=allowing(False))
    assert wishes(found) == {"account physics QOS/low": "yes"}
    assert found.changes[0].admin_level is AdminLevel.OPERATOR
    assert " ".join(found.changes[0].argv[4:]) == "where name=physics cluster=ada set QOS+=low"
    last = found.written({}, found.changes)
    assert made(LOW, have=allowing(True), last=last).changes == ()
    assert made(have=allowing(True), last=last).changes == ()  # the rule is gone, the leave stays
    taken = made(LOW, have=allowing(False), last=last)
    assert [(c.id, c.want) for c in taken.drift] == [("account physics QOS/low", "yes")]  # by somebody's hand


def test_a_user_with_qos_of_their_own_needs_that_of_the_soft_limit_too() -> None:
    have = allowing(False, changes={(USER, "physics/bob"): {"QOS": "normal,fast"}})
    assert wishes(made(LOW, have=have)) == {"account physics QOS/low": "yes", "user physics/bob QOS/low": "yes"}


def test_a_soft_limits_qos_that_is_not_there_is_said_and_takes_an_administrator() -> None:
    found = made(LOW, have=allowing(False, qos=False))
    assert {c.id: c.admin_level for c in found.changes} == {
        "qos low Name": AdminLevel.ADMINISTRATOR,
        "account physics QOS/low": AdminLevel.ADMINISTRATOR,
    }
    assert commands(found.changes, "ada")[0][2:] == ("add", "qos", "low")
    assert [(left.quota, "until there is a QOS low" in left.reason) for left in found.unenforced] == [("soft", True)]


def test_a_term_that_comes_has_its_qos_and_one_that_is_over_needs_none() -> None:
    soon = replace(LOW, window=Window.TERM, start=2000.0, end=3000.0)
    assert wishes(made(soon, have=allowing(False))) == {"account physics QOS/low": "yes"}
    over = replace(LOW, window=Window.TERM, start=1.0, end=2.0)
    assert made(over, have=allowing(False, qos=False)) == Plan()


EACH = Quota("each", SubjectKind.ACCOUNT, name="physics", concurrent_gpus=4)
ID = "account physics GrpTRES/gres/gpu"


def having(value: str) -> State:
    return state({(ACCOUNT, "physics"): {"GrpTRES/gres/gpu": value} if value else {}})


def test_once_written_nothing_is_left_to_do() -> None:
    first = made(EACH)
    last = first.written({}, first.changes)
    assert last == {ID: "4"}
    again = made(EACH, have=having("4"), last=last)
    assert (again.changes, again.drift, again.written(last)) == ((), (), last)


def test_what_was_not_applied_is_not_taken_for_written() -> None:
    first = made(EACH)
    assert first.written({}) == {}


def test_our_own_old_value_is_replaced_and_taken_away_with_its_rule() -> None:
    changed = made(EACH, have=having("3"), last={ID: "3"})
    assert [(c.have, c.want) for c in changed.changes] == [("3", "4")]
    gone = made(have=having("4"), last={ID: "4"})
    assert [(c.want, c.argv[-1]) for c in gone.changes] == [("", "GrpTRES=gres/gpu=-1")]
    assert gone.written({ID: "4"}) == {ID: "4"}
    assert gone.written({ID: "4"}, gone.changes) == {}


def test_a_value_of_somebody_else_is_reported_and_kept() -> None:
    for have, last in (("9", {ID: "4"}), ("", {ID: "4"}), ("9", {})):
        found = made(EACH, have=having(have), last=last)
        assert (found.changes, [(c.id, c.have, c.want) for c in found.drift]) == ((), [(ID, have, "4")])
        assert found.written(last) == last  # so it is reported again
        forced = made(EACH, have=having(have), last=last, force=True)
        assert (wishes(forced), forced.drift) == ({ID: "4"}, ())


def test_a_value_of_somebody_else_that_no_rule_is_about_is_not_ours() -> None:
    for last in ({}, {ID: "4"}):
        found = made(have=having("9"), last=last)
        assert (found.changes, found.drift, found.written(last)) == ((), (), {})
    other = state({(ACCOUNT, "physics"): {"GrpTRES/cpu": "100", **USUAL}})
    assert wishes(made(EACH, have=other)) == {ID: "4"}


def test_the_administrators_part_is_known_as_ours_once_it_is_seen() -> None:
    first = made(budgets={"physics": 60_000})
    assert first.written({}) == {}
    done = state(
        {
            (QOS, "carme-physics"): {"Name": "yes", "Flags/NoDecay": "yes", "GrpTRESMins/gres/gpu": "1"},
            (ACCOUNT, "physics"): {"QOS": "carme-physics", "DefaultQOS": "carme-physics"},
        }
    )
    seen = made(have=done, budgets={"physics": 60_000})
    assert seen.changes == ()
    last = seen.written({})
    more = made(have=done, budgets={"physics": 120_000}, last=last)
    assert [(c.key, c.want) for c in more.changes] == [("GrpTRESMins/gres/gpu", "2")]
    none = made(have=done, last=last)
    assert {c.key for c in none.changes} == {"Flags/NoDecay", "GrpTRESMins/gres/gpu"}  # no QOS is taken from anybody
    assert none.changes[0].argv[-1] == "Flags-=NoDecay"


def test_a_change_names_itself() -> None:
    assert Change(USER, "physics/bob", "MaxJobs", "", "3").id == "user physics/bob MaxJobs"
