"""Somebody leaves: all is listed first, ends in order, and what is not answered is not called done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from forged_people import BOOKING, ID
from leaving_user import Leaving

from carme_hub.accounting.ledger import Ledger
from carme_hub.accounting.requests import Requests
from carme_hub.cli.quotas.ledger_access import LedgerAccess
from carme_hub.cli.users.command import UsersApp
from carme_hub.cli.users.locks import LockApp, LockedApp, UnlockApp
from carme_hub.cli.users.offboard import OffboardApp
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.domain.quotas.policy import Policy
from carme_hub.domain.quotas.rules import Person, QuotaRequest
from carme_hub.store.engine import CarmeStore
from carme_hub.store.ledger.writes import LedgerStore

ORDER = [
    *("access", "sessions", "jobs", "bookings", "shares", "tokens", "calendar feed", "requests", "holds", "balances"),
    *("folders", "hub user"),
]


@pytest.fixture
def money(leaving: Leaving, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    """GPU time of alice: a hold, an open request, and an account that only she uses."""
    engine = CarmeStore(url=leaving.line.url).open()
    found = Ledger(LedgerStore(engine), "lab", policy=Policy, factor=lambda *_: 1000, clock=time.time)

    async def make() -> None:
        for account in ("physics", "alice-own"):
            about = {"key": account, "actor": "root", "reason": "x"}
            await found.grant(account, 100 * GPU_HOUR, **about)  # type: ignore[arg-type]
        await found.admit(ID, Person("alice"), QuotaRequest("physics", Gpus("a100", 1), 8 * 3600))
        await found.admit("bobs", Person("bob"), QuotaRequest("physics", Gpus("a100", 1), 3600))
        await Requests(found).ask("physics", "alice", 50 * GPU_HOUR, "Runs", key="k")

    asyncio.run(make())

    class SettlementOfThis:
        async def settle(self) -> None:
            await found.release(ID, "its session is over")

    monkeypatch.setattr(LedgerAccess, "settlement_loop", lambda _self: SettlementOfThis())
    yield found
    engine.dispose()


def test_everything_is_listed_and_nothing_is_done(leaving: Leaving, money: Ledger) -> None:
    code, out, err = leaving.run("--dry-run")
    assert (code, err) == (0, "")
    for words in (
        "may log in",
        "session on n1, running, 1 a100, job 812",
        "job 815 (train), pending",
        "--all-jobs cancels it",
        "“Lab”, 4 × a100, from 2030-03-17 17:46, confirmed",
        "shares their server other",
        "has codes to share their server other",
        "may use bob's server lab",
        "my script (a17)",
        "50 GPU-hours for physics: Runs",
        "8 GPU-hours of physics for a session",
        "left in physics  ",
        "100 GPU-hours left in alice-own, which has no other user",
        str(leaving.home),
        "--remove deletes it there",
    ):
        assert words.strip() in out, words
    assert out.endswith("Nothing is done.\n")
    assert "theirs" not in out
    assert list(leaving.parts("--dry-run")) == ORDER
    assert (leaving.hub.writes, leaving.slurm.cancelled, leaving.home.is_dir()) == ([], [], True)


def test_without_a_yes_nothing_is_done(leaving: Leaving) -> None:
    code, out, err = leaving.run()
    assert (code, "add --yes" in err, "may log in" in out) == (2, True, True)
    code, _, err = leaving.line.run(OffboardApp, "alice", "--hub", leaving.hub.address)
    assert (code, "say why with --reason" in err) == (2, True)
    assert leaving.hub.writes == []


def test_each_part_ends_and_is_recorded_and_a_second_run_does_nothing(leaving: Leaving, money: Ledger) -> None:
    hub = leaving.hub
    code, out, err = leaving.run("--yes", "--give-to", "physics", "--remove", "--all-jobs")
    assert code == 0, out + err
    assert "sacctmgr -i delete user name=alice cluster=lab" in err
    assert (hub.locked, hub.users, hub.sessions, hub.servers, hub.tokens) == (["alice"], set(), [], [], {})
    assert (hub.shares, hub.codes, hub.shared, hub.bookings) == ([], [], [], {})
    assert (sorted(leaving.slurm.jobs), leaving.slurm.cancelled) == ([900], [815])
    assert hub.writes[1].endswith("/users/alice/lock"), "first the door is closed"
    assert hub.writes[-2] == "DELETE /hub/api/users/alice", "the user goes last"

    async def read() -> None:
        assert [one.state for one in await Requests(money).all()] == ["denied"]
        balances = await money.balances()
        assert {name: one.left for name, one in balances.items()} == {"physics": 199 * GPU_HOUR, "alice-own": 0}

    asyncio.run(read())
    reasons = [entry.reason for entry in leaving.line.statement()]
    assert reasons.count("alice has left: Left in May") == 2
    assert leaving.home.is_dir(), "folders are listed, and nothing else"
    ends = [did for did, outcome in hub.notes if not outcome and " to be " not in did]
    assert ends == [
        *("access: 1 locked", "sessions: 2 stopped", "jobs: 1 cancelled", "bookings: 1 cancelled", "shares: 4 revoked"),
        *("tokens: 2 deleted", "requests: 1 denied", "holds: 1 given back", "balances: 1 moved", "hub user: 1 deleted"),
    ]
    assert any("jobs: 1 to be cancelled: job 815 (train), pending" in did for did, _ in hub.notes)

    before, entries = list(hub.writes), leaving.line.statement()
    code, out, _ = leaving.run("--yes", "--give-to", "physics", "--remove", "--all-jobs")
    assert (code, "Nothing of alice is left here" in out) == (0, True)
    assert (hub.writes, leaving.line.statement()) == (before, entries)


def test_a_silent_slurm_leaves_jobs_unknown_and_what_needs_them_undone(leaving: Leaving, money: Ledger) -> None:
    leaving.slurm.silent = True
    assert leaving.run("--dry-run")[0] == 1
    parts = leaving.parts("--yes", "--archive", str(leaving.line.folder))
    states = {name: one["state"] for name, one in parts.items()}
    assert states == {
        **dict.fromkeys(ORDER, "done"),
        **{"jobs": "unknown", "balances": "unknown", "holds": "waits", "folders": "waits"},
    }
    assert "Slurm does not answer" in parts["jobs"]["words"]
    assert leaving.home.is_dir()
    leaving.slurm.silent = False
    parts = leaving.parts("--yes")
    assert {one["state"] for one in parts.values()} == {"done"}
    assert leaving.slurm.cancelled == [812]


def test_a_job_that_does_not_end_is_left_and_said_so(leaving: Leaving) -> None:
    leaving.slurm.ignores_cancel = True
    code, out, err = leaving.run("--yes", "--all-jobs")
    assert code == 1
    assert "jobs: it has not ended yet; the same command goes on" in err
    assert "job 815 (train), pending" in out
    assert ("jobs: 0 cancelled", "it has not ended yet; the same command goes on") in leaving.hub.notes


@pytest.mark.parametrize(
    ("path", "part"),
    [("/bookings", "bookings"), ("/tokens", "tokens"), ("/shares/", "shares"), ("console/sessions", "sessions")],
)
def test_what_does_not_answer_is_unknown_and_others_end(leaving: Leaving, path: str, part: str) -> None:
    leaving.hub.fails = path
    parts = leaving.parts("--yes")
    assert parts[part]["state"] == "unknown"
    assert parts["access"]["state"] == "done"
    assert leaving.hub.locked == ["alice"]
    leaving.hub.fails = ""
    assert leaving.run("--yes")[0] == 0


def test_a_database_that_cannot_be_read_leaves_gpu_time_unknown(leaving: Leaving) -> None:
    leaving.line.database.rename(leaving.line.database.with_suffix(".away"))
    code, out, _ = leaving.run("--yes")
    assert (code, out.count("There is no database")) == (1, 8), out
    assert (leaving.hub.sessions, leaving.hub.tokens) == ([], {})


def test_what_cannot_be_recorded_is_not_done(leaving: Leaving) -> None:
    leaving.hub.records = False
    parts = leaving.parts("--yes")
    assert {name for name, one in parts.items() if one["state"] == "unknown"} == {"access"}
    assert "cannot be recorded in the audit log" in parts["access"]["words"]
    assert parts["sessions"]["state"] == "waits"
    assert (leaving.hub.locked, len(leaving.hub.sessions), leaving.slurm.cancelled) == ([], 1, [])


def test_a_run_that_died_half_way_goes_on(leaving: Leaving, monkeypatch: pytest.MonkeyPatch) -> None:
    from carme_hub.cli.users.calendar_parts import Bookings

    async def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Bookings, "end", killed)
        assert leaving.run("--yes")[0] == 130
    assert (leaving.hub.locked, leaving.hub.sessions) == (["alice"], [])
    assert (list(leaving.hub.bookings), len(leaving.hub.tokens)) == ([BOOKING], 2)
    assert leaving.run("--yes")[0] == 0
    assert (leaving.hub.bookings, leaving.hub.tokens) == ({}, {})


def test_a_token_that_may_not_see_is_not_taken_for_nothing_there(leaving: Leaving) -> None:
    leaving.hub.scopes.remove("shares")
    leaving.hub.scopes.remove("read:tokens")
    code, _, err = leaving.run("--yes")
    assert (code, "The token lacks: read:tokens, shares." in err) == (1, True)
    assert leaving.hub.writes == []


def test_names_that_users_chose_neither_steer_the_terminal_nor_stop_the_record(leaving: Leaving) -> None:
    leaving.hub.tokens = {"a17": "\x1b[2J\u202enekot\n" + "x" * 2000}
    code, out, _ = leaving.run("--yes")
    assert code == 0
    assert "?[2J?nekot xxx" in out
    assert not {"\x1b", "\u202e"} & set(out)
    assert any("tokens: 1 to be deleted: ?[2J?nekot" in did for did, _ in leaving.hub.notes)
    assert max(len(did) for did, _ in leaving.hub.notes) < 1000


def test_a_misspelt_name_is_refused(leaving: Leaving) -> None:
    for name, code in (("alcie", 1), ("../alice", 2), ("", 2)):
        argv = (name, "--hub", leaving.hub.address, "--reason", "x", "--yes")
        assert leaving.line.run(OffboardApp, *argv)[0] == code, name
    assert leaving.hub.writes == []


def test_lock_and_unlock_by_hand(leaving: Leaving) -> None:
    def run(app: type, *argv: str) -> tuple[int, str, str]:
        command = app()

        def initialize_and_start() -> None:
            command.initialize([*argv, "--hub", leaving.hub.address])
            command.start()

        with pytest.raises(SystemExit) as ended:
            initialize_and_start()
        output = leaving.line._capsys.readouterr()
        return int(ended.value.code or 0), output.out, output.err

    assert run(LockApp, "alice")[0] == 2
    assert run(LockApp, "alice", "--reason", "x")[0] == 2, "it asks"
    assert run(LockApp, "alice", "--reason", "x", "--yes")[:2] == (0, "alice is locked.\n")
    assert "alice" in run(LockedApp)[1]
    assert run(UnlockApp, "alice", "--reason", "x")[:2] == (0, "alice is not locked any more.\n")
    assert run(LockedApp)[1] == "Nobody is locked.\n"
    assert set(UsersApp.subcommands) == {"offboard", "lock", "unlock", "locked"}
