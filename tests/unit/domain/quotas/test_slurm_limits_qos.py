"""The second fence and lists of QOS: what we added ourselves is ours, and what somebody listed by hand is added to."""

from __future__ import annotations

from collections.abc import Mapping

from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.domain.quotas.rules import Quota, SubjectKind, Window
from carme_hub.domain.quotas.sacctmgr_argv import Entity, Target
from carme_hub.domain.quotas.slurm_limits import AdminLevel, LimitSettings, Plan, State, commands, plan

PHYSICS = (Entity.ACCOUNT, "physics")
LOW = Quota(
    "soft", SubjectKind.ACCOUNT, name="physics", gpu_time=GPU_HOUR, window=Window.WEEK, soft=True, soft_qos="low"
)
BUDGET = {"physics": GPU_HOUR}
LIST, DEFAULT, ADDED = "account physics QOS", "account physics DefaultQOS", "account physics QOS/low"


def slurm(physics: Mapping[str, str], qos: str = "normal,low,carme-physics") -> State:
    """Return a cluster with these QOS and one account; without a list of its own the account may use normal."""
    limits: dict[Target, dict[str, str]] = {(Entity.QOS, name): {"Name": "yes"} for name in qos.split(",")}
    ready = {"Flags/NoDecay": "yes", "GrpTRESMins/gres/gpu": "60"}
    limits |= {target: {**has, **ready} for target, has in limits.items() if target[1] == "carme-physics"}
    limits[PHYSICS] = dict(physics)
    may = frozenset(physics.get("QOS", "normal").split(","))
    return State("ada", limits, frozenset({"gres/gpu"}), {PHYSICS: may})


def wants(found: Plan) -> dict[str, str]:
    return {change.id: change.want for change in found.changes}


def drift(found: Plan) -> dict[str, str]:
    return {change.id: change.have for change in found.drift}


def test_a_soft_qos_that_we_added_makes_room_for_a_budget() -> None:
    first = plan([LOW], slurm({}), now=0.0)
    last = first.written({}, first.changes)
    assert last[ADDED] == "yes"
    found = plan([LOW], slurm({"QOS": "low"}), now=0.0, budgets=BUDGET, last=last)  # QOS+=low, as sacctmgr shows it
    assert wants(found) == {LIST: "carme-physics,low", DEFAULT: "carme-physics"}
    assert found.drift == ()
    last = found.written(last, found.changes)
    done = slurm({"QOS": "carme-physics,low", "DefaultQOS": "carme-physics"})
    again = plan([LOW], done, now=0.0, budgets=BUDGET, last=last)
    assert (again.changes, again.drift, again.written(last)) == ((), (), last)


def test_what_we_added_is_still_ours_while_an_administrator_is_waited_for() -> None:
    have, last = slurm({"QOS": "low"}, qos="normal,low"), {ADDED: "yes"}
    for _ in range(3):  # the QOS of the budget is the administrator's to make
        found = plan([LOW], have, now=0.0, budgets=BUDGET, last=last)
        assert found.drift == ()
        assert {c.id: c.admin_level for c in found.changes}[LIST] is AdminLevel.ADMINISTRATOR
        last = found.written(last)
        assert last[ADDED] == "yes"


def test_what_we_added_is_still_ours_when_its_rule_is_gone() -> None:
    have = slurm({"QOS": "low"})
    last = plan([], have, now=0.0, last={ADDED: "yes"}).written({ADDED: "yes"})
    found = plan([], have, now=0.0, budgets=BUDGET, last=last)
    assert wants(found) == {LIST: "carme-physics", DEFAULT: "carme-physics"}


def test_what_we_added_and_somebody_took_away_is_no_more_ours() -> None:
    assert plan([], slurm({}), now=0.0, last={ADDED: "yes"}).written({ADDED: "yes"}) == {}


def test_a_list_with_one_name_that_we_did_not_add_is_somebodys() -> None:
    for have, last in (("low,short", {ADDED: "yes"}), ("low", {}), ("short", {ADDED: "yes"})):
        found = plan([], slurm({"QOS": have}), now=0.0, budgets=BUDGET, last=last)
        assert (wants(found), drift(found)) == ({}, {DEFAULT: "", LIST: have})


def test_our_list_that_somebody_emptied_stays_theirs_when_a_soft_qos_is_added_to_it() -> None:
    last = {LIST: "carme-physics,low"}
    found = plan([LOW], slurm({}), now=0.0, budgets=BUDGET, last=last)
    assert wants(found) == {ADDED: "yes"}
    again = plan([LOW], slurm({"QOS": "low"}), now=0.0, budgets=BUDGET, last=found.written(last, found.changes))
    assert (wants(again), drift(again)) == ({}, {DEFAULT: "", LIST: "low"})


def test_no_default_is_set_that_the_list_kept_by_hand_does_not_have() -> None:
    have = slurm({"QOS": "normal,short"})
    found = plan([], have, now=0.0, budgets=BUDGET)
    assert (wants(found), drift(found)) == ({}, {DEFAULT: "", LIST: "normal,short"})
    assert found.written({}) == {
        "qos carme-physics Name": "yes",
        **{
            f"qos carme-physics {key}": value
            for key, value in (("Flags/NoDecay", "yes"), ("GrpTRESMins/gres/gpu", "60"))
        },
    }
    forced = plan([], have, now=0.0, budgets=BUDGET, force=True)
    assert wants(forced) == {LIST: "carme-physics", DEFAULT: "carme-physics"}
    widened = slurm({"QOS": "carme-physics"})  # by hand, to what the policy wants
    assert wants(plan([], widened, now=0.0, budgets=BUDGET, last=found.written({}))) == {DEFAULT: "carme-physics"}


def test_a_soft_qos_is_added_to_a_list_kept_by_hand() -> None:
    have = slurm({"QOS": "normal,short", "DefaultQOS": "normal"})
    found = plan([LOW], have, now=0.0, budgets=BUDGET)
    assert (wants(found), drift(found)) == ({ADDED: "yes"}, {DEFAULT: "normal", LIST: "normal,short"})
    assert [" ".join(argv[4:]) for argv in commands(found.changes, "ada")] == [
        "where name=physics cluster=ada set QOS+=low"
    ]
    last = found.written({}, found.changes)
    there = slurm({"QOS": "low,normal,short", "DefaultQOS": "normal"})
    again = plan([LOW], there, now=0.0, budgets=BUDGET, last=last)
    assert (wants(again), drift(again)) == ({}, {DEFAULT: "normal", LIST: "low,normal,short"})
    assert again.written(last) == last
    forced = plan([LOW], there, now=0.0, budgets=BUDGET, last=last, force=True)
    assert wants(forced) == {LIST: "carme-physics,low", DEFAULT: "carme-physics"}
    assert ADDED not in forced.written(last, forced.changes)  # the list has it now


def test_names_of_qos_are_compared_as_slurm_keeps_them() -> None:
    limit_settings = LimitSettings(session_qos="Sessions", prefix="Carme-", keep_qos=("Fast",))
    assert (limit_settings.session_qos, limit_settings.prefix, limit_settings.keep_qos) == (
        "sessions",
        "carme-",
        ("fast",),
    )
    done = slurm({"QOS": "carme-physics,fast", "DefaultQOS": "carme-physics"}, qos="carme-physics,fast,sessions")
    found = plan([], done, now=0.0, budgets=BUDGET, limit_settings=limit_settings)
    assert (found.changes, found.drift) == ((), ())
