"""``carme-hub quotas`` and ``carme-hub db``: what they print, what they refuse, and with which exit status."""

from __future__ import annotations

import importlib
import os
import pwd
import time
from types import SimpleNamespace
from typing import Any

import pytest
from rig.command_line import CommandLine, line
from traitlets.config import Application

from carme_hub.cli.base import UsageError, actor, table
from carme_hub.cli.db import BackupApp, CheckApp, DbApp
from carme_hub.cli.quotas.command import QuotasApp
from carme_hub.cli.quotas.grants import CorrectApp, GrantApp, TransferApp
from carme_hub.cli.quotas.ledger_access import hours, read_amount, read_time
from carme_hub.cli.quotas.policy import MirrorApp, ReplayApp
from carme_hub.cli.quotas.requests import ApproveApp, DenyApp, RequestApp
from carme_hub.cli.quotas.show import ReportApp, ShowApp
from carme_hub.cli.quotas.slurm import AnomaliesApp, ReconcileApp, SettleApp
from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import GPU_HOUR, SYSTEM_ACTOR
from carme_hub.domain.ledger.usage import Usage
from carme_hub.store.engine import current_revision, make_engine, migrate

__all__ = ["line"]
SACCTMGR = """#!/bin/sh
case "$*" in
  *withassoc*) cat "$(dirname "$0")/associations" ;;
  *) exit 1 ;;
esac
"""


def usage(job: int = 7, seconds: int = 3600, **changes: Any) -> Usage:
    end = int(time.time()) - 60
    known: dict[str, Any] = {
        **{"name": "train", "user": "ada", "account": "physics", "partition": "gpu", "qos": "normal"},
        **{"state": "COMPLETED", "phase": Phase.TERMINAL, "submitted": float(end - seconds - 1)},
        **{"start": float(end - seconds), "end": float(end), "gpus": (Gpus("a100", 2),), **changes},
    }
    return Usage(job, str(job), **known)


COMMANDS: list[tuple[str, Any]] = [*QuotasApp.subcommands.items(), *DbApp.subcommands.items()]


@pytest.mark.parametrize(("name", "target"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_every_command_says_how_it_is_used(name: str, target: Any) -> None:
    app = target[0]
    if isinstance(app, str):
        module, _, attribute = app.rpartition(".")
        app = getattr(importlib.import_module(module), attribute)
    assert app.name.endswith(f" {name}")
    assert str(app.examples).startswith(app.name)


def test_what_is_granted_is_shown(line: CommandLine) -> None:
    code, out, err = line.grant("physics", "100h", "--reason", "Winter term")
    assert (code, err) == (0, "")
    assert out == "granted 100 GPU-hours to physics\nphysics has 100 GPU-hours left\n"
    assert line.run(ShowApp)[1].split() == [
        "account",
        "granted",
        "used",
        "held",
        "left",
        "physics",
        "100",
        "0",
        "0",
        "100",
    ]
    assert line.json(ShowApp)["accounts"]["physics"] == {
        **{"granted": 100 * GPU_HOUR, "used": 0, "held": 0, "left": 100 * GPU_HOUR}
    }
    shown = line.run(ShowApp, "--account", "physics")[1]
    assert "Winter term" in shown
    assert actor() in shown


def test_an_account_that_was_never_given_anything_has_nothing_left_to_show(line: CommandLine) -> None:
    line.used(usage(7))
    assert line.run(ShowApp)[1].split()[-5:] == ["physics", "0", "2", "0", "–"]
    assert line.json(ShowApp)["accounts"]["physics"]["left"] is None


def test_the_same_key_grants_once(line: CommandLine) -> None:
    argv = ("physics", "1.5", "--reason", "x", "--key", "october")
    assert line.grant(*argv)[0] == line.grant(*argv)[0] == 0
    assert line.run(ShowApp)[1].split()[-1] == "1.5"
    code, _, err = line.grant("physics", "2", "--reason", "x", "--key", "october")
    assert code == 1
    assert "was used for something else" in err


def test_a_credit_is_worth_something_until_the_end_of_its_last_day(line: CommandLine) -> None:
    code, out, _ = line.grant("physics", "10h", "--reason", "x", "--expires", "2099-03-31")
    assert code == 0
    assert "until 2099-04-01 00:00 (Europe/Berlin)" in out
    assert line.statement()[0].expires == read_time("2099-04-01", "Europe/Berlin")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["physics", "10h"], "give a reason with --reason"),
        (["physics"], "usage: carme-hub quotas grant ACCOUNT AMOUNT"),
        (["physics", "10h", "--reason", "x", "--expire", "2027-01-01"], "Did you mean --expires?"),
        (["physics", "ten", "--reason", "x"], "is no GPU time"),
        (["physics", "-10", "--reason", "x"], "there is no option -10"),
        (["physics", "0.0001", "--reason", "x"], "at most three decimals"),
        (["physics", "10h", "--reason", "x", "--expires", "soon"], "is no time"),
    ],
)
def test_what_makes_no_sense_writes_nothing_and_exits_with_2(line: CommandLine, argv: list[str], said: str) -> None:
    code, out, err = line.grant(*argv)
    assert (code, out) == (2, "")
    assert said in err
    assert line.statement() == []


def test_a_refusal_exits_with_1_and_says_why(line: CommandLine) -> None:
    line.grant("physics", "1h", "--reason", "x")
    argv = ("physics", "teaching", "2h", "--reason", "x", "--no-check")
    code, _, err = line.run(TransferApp, *argv)
    assert code == 1
    assert "1.00 GPU-hours that can be moved" in err
    assert line.json(TransferApp, *argv)["error"] == "not-enough-left"
    assert line.run(TransferApp, "physics", "teaching", "0.25", "--reason", "x", "--no-check")[0] == 0
    shown = line.json(ShowApp)["accounts"]
    assert {name: each["left"] for name, each in shown.items()} == {
        "physics": GPU_HOUR * 3 // 4,
        "teaching": GPU_HOUR // 4,
    }


def test_a_grant_that_was_too_large_is_taken_back(line: CommandLine) -> None:
    line.grant("physics", "1000h", "--reason", "x")
    code, out, _ = line.run(CorrectApp, "physics", "900h", "--take", "--reason", "meant 100h", "--no-check")
    assert code == 0
    assert "physics has 100 GPU-hours left" in out


def test_an_account_that_slurm_does_not_have_is_refused(line: CommandLine) -> None:
    code, _, err = line.run(GrantApp, "physics", "1h", "--reason", "x")
    assert code == 2
    assert "--no-check skips this check" in err
    forge_accounts(line)
    assert line.run(GrantApp, "physcs", "1h", "--reason", "x")[0] == 1
    assert line.statement() == []
    assert line.run(GrantApp, "physics", "1h", "--reason", "x")[0] == 0


def test_nothing_is_made_or_upgraded_by_looking(line: CommandLine) -> None:
    line.database.unlink()
    code, _, err = line.run(ShowApp)
    assert code == 2
    assert "There is no database" in err
    assert not line.database.exists()
    engine = make_engine(line.url)
    migrate(engine, "carme0002")
    line.file.write_text(line.file.read_text() + "c.CarmeStore.upgrade = True\n")
    code, _, err = line.run(ShowApp)
    assert code == 2
    assert "carme-hub db upgrade" in err
    assert current_revision(engine) == "carme0002"
    engine.dispose()


def test_a_configuration_that_fails_is_said_in_one_line(line: CommandLine) -> None:
    line.file.write_text("1 / 0\n")
    for app in (ShowApp, GrantApp, ReconcileApp, CheckApp, BackupApp):
        argv = ("physics", "1h", "--reason", "x") if app is GrantApp else ()
        code, out, err = line.run(app, *argv)
        assert (code, out) == (2, "")
        assert err.startswith(f"{app.name}: {line.file} fails: ZeroDivisionError")


def test_the_actor_is_who_called_sudo_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "ada")
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert actor() == "ada"
    monkeypatch.delenv("SUDO_USER")
    assert actor() == "root"
    monkeypatch.setattr(os, "getuid", lambda: 1)  # SUDO_USER is a word that anybody can set
    monkeypatch.setenv("SUDO_USER", "root")
    assert actor() != "root"


def test_who_runs_commands_as_the_hubs_user_is_not_taken_for_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 998)
    monkeypatch.setattr(pwd, "getpwuid", lambda _uid: SimpleNamespace(pw_name=SYSTEM_ACTOR))
    assert actor() == "user:carme-hub"
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setenv("SUDO_USER", SYSTEM_ACTOR)
    assert actor() == "user:carme-hub"


def test_a_report_adds_up_to_what_the_ledger_says(line: CommandLine) -> None:
    line.grant("physics", "10h", "--reason", "x")
    line.used(usage(7), usage(8, 1800, user="bob", gpus=(Gpus("h100", 1),)), usage(9, 600, state="NODE_FAIL"))
    used = line.json(ShowApp)["accounts"]["physics"]["used"]
    assert used == 2 * GPU_HOUR + GPU_HOUR // 2
    now = time.localtime()
    months = [f"{now.tm_year}-{now.tm_mon:02}", f"{now.tm_year - (now.tm_mon == 1)}-{(now.tm_mon - 2) % 12 + 1:02}"]
    for by in ("account", "user", "gpu"):
        rows = [row for month in months for row in line.json(ReportApp, "--by", by, "--month", month)["rows"]]
        assert sum(row["amount"] for row in rows) == used
        assert sum(row["refunded"] for row in rows) == GPU_HOUR // 3
    text = line.run(ReportApp, "--by", "user", "--csv")[1]
    assert text.splitlines()[0] == "user,jobs,gpu_hours,refunded_gpu_hours,cost_eur"
    assert line.run(ReportApp, "--month", "october")[0] == 2


def test_a_request_is_answered_once_by_a_person(line: CommandLine) -> None:
    forge_accounts(line)
    asked = line.json(RequestApp, "physics", "50h", "--reason", "the paper")
    assert (asked["state"], asked["user"]) == ("open", actor())
    assert asked["id"] in line.run(RequestApp)[1]
    code, _, err = line.run(ApproveApp, asked["id"])
    assert code == 2
    assert "add --yes" in err
    assert line.statement() == []
    answered = line.run(ApproveApp, asked["id"], "--amount", "25h", "--reason", "half", "--yes")[1]
    assert f"approved with 25 GPU-hours by {actor()}: half" in answered
    assert line.run(DenyApp, asked["id"], "--reason", "no", "--yes")[0] == 1
    assert [(each.amount, each.account) for each in line.statement()] == [(25 * GPU_HOUR, "physics")]
    assert line.run(RequestApp)[1] == "No request waits for an answer.\n"
    assert line.run(DenyApp, "0000", "--reason", "no", "--yes")[0] == 1
    assert line.run(RequestApp, "chemistry", "5h", "--reason", "x")[0] == 2


def test_an_id_that_is_empty_answers_nobodys_request(line: CommandLine) -> None:
    forge_accounts(line)
    line.json(RequestApp, "physics", "50h", "--reason", "the paper")
    for answer in (ApproveApp, DenyApp):  # as a script writes it where its variable is not set
        code, _, err = line.run(answer, "", "--reason", "x", "--yes")
        assert code == 2
        assert "the id of the request" in err
        assert "`carme-hub quotas request`" in err
    assert line.statement() == []
    assert "waits" in line.run(RequestApp)[1]


def forge_accounts(line: CommandLine) -> None:
    (line.folder / "bin").mkdir()
    command = line.folder / "bin" / "sacctmgr"
    command.write_text(SACCTMGR)
    command.chmod(0o755)
    rows = ["User|Account|Partition|QOS|Def Acct|Coord Accounts", "ada|physics||normal|physics|"]
    (line.folder / "bin" / "associations").write_text("\n".join(rows) + "\n")


def test_what_looks_wrong_waits_for_a_person_who_decides_once(line: CommandLine) -> None:
    assert line.run(AnomaliesApp)[:2] == (0, "No anomaly waits for a person.\n")
    line.used(usage(7, time_limit=60))  # it ran for an hour
    code, out, _ = line.run(AnomaliesApp)
    assert code == 1
    assert "a100:2" in out
    (waiting,) = line.json(AnomaliesApp)["anomalies"]
    decide = ("--decide", str(waiting["id"]))
    assert line.run(AnomaliesApp, *decide, "--reason", "x", "--yes")[0] == 2
    assert line.run(AnomaliesApp, *decide, "--charge", "1min", "--yes")[0] == 2
    assert line.run(AnomaliesApp, *decide, "--charge", "1min", "--reason", "x")[0] == 2
    assert line.statement() == []
    code, out, _ = line.run(AnomaliesApp, *decide, "--charge", "1min", "--reason", "the clock stepped", "--yes")
    assert (code, out) == (0, "wrote -0.033 GPU-hours for ada in physics (charge)\n")
    assert [each.amount for each in line.statement()] == [-120_000]
    assert line.run(AnomaliesApp, *decide, "--nothing", "--reason", "x", "--yes")[0] == 1
    code, out, _ = line.run(AnomaliesApp, "--decided")
    assert code == 0
    assert "the clock stepped" in out


@pytest.mark.parametrize("app", [SettleApp, ReconcileApp, MirrorApp])
def test_while_slurm_is_silent_nothing_is_said_about_it(line: CommandLine, app: type[Application]) -> None:
    code, out, err = line.run(app)
    assert (code, out) == (2, "")
    assert "sac" in err
    assert line.statement() == []


def test_a_replay_says_from_when(line: CommandLine) -> None:
    assert "--from" in line.run(ReplayApp)[2]
    code, _, err = line.run(ReplayApp, "--from", "2026-10-01", "--policy", str(line.folder / "none.yaml"))
    assert code == 2
    assert "none.yaml" in err


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("100h", 100 * GPU_HOUR),
        ("1.5", GPU_HOUR * 3 // 2),
        ("90 min", GPU_HOUR * 3 // 2),
        ("0.001", 3600),
        ("1s", 1000),
        ("2 gpu-hours", 2 * GPU_HOUR),
    ],
)
def test_an_amount_is_read_exactly(text: str, amount: int) -> None:
    assert read_amount(text) == amount


@pytest.mark.parametrize("text", ["", "nan", "inf", "1e99", "1.0001", "0.0001s", "1 fortnight", "1,5"])
def test_an_amount_that_cannot_be_read_exactly_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        read_amount(text)


@pytest.mark.parametrize(
    ("amount", "text"), [(0, "0"), (GPU_HOUR, "1"), (1000 * GPU_HOUR, "1000"), (-5400_000, "-1.5"), (1000, "0")]
)
def test_gpu_hours_have_at_most_three_decimals(amount: int, text: str) -> None:
    assert hours(amount) == text


def test_a_table_puts_numbers_to_the_right() -> None:
    assert table(("a", "b c"), [("x", 1), ("yy", 22)], "b_c") == "a   b c\nx     1\nyy   22"
