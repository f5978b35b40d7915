"""``carme-hub quotas import | export``: a diff first, errors by line, and a second time nothing changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rig.command_line import CommandLine, line

from carme_hub.accounting.settings import read_policy
from carme_hub.cli.quotas.exchange import ExportApp, ImportApp
from carme_hub.cli.quotas.show import ShowApp
from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.domain.quotas.policy import parse_policy
from carme_hub.slurm import limits

__all__ = ["line"]
POLICY = "zone: Europe/Berlin\nquotas:\n- {id: each, user: '*', concurrent_gpus: 8}\n"
TABLE = "account,granted,users,gpu_time,window,concurrent_gpus\nphysics,100,ada zoe,200,month,4\nnew,5,tina,,,\n"
SACCTMGR = """#!/bin/sh
cd "$(dirname "$0")"
[ -e silent ] && exit 1
case "$*" in
  *withassoc*) cat associations ;;
  *"show qos"*) cat qos ;;
  *"show tres"*) cat tres ;;
  *WOPLimits*) cat limits ;;
  *"show assoc"*) cat may ;;
  *) exit 1 ;;
esac
"""


@pytest.fixture
def site(line: CommandLine) -> CommandLine:
    """A site whose policy is in a file, and whose Slurm is forged."""
    (line.folder / "policy.yaml").write_text(POLICY)
    with line.file.open("a") as file:
        file.write(f"del c.CarmeQuotas.policy\nc.CarmeQuotas.policy_file = {str(line.folder / 'policy.yaml')!r}\n")
    folder = line.folder / "bin"
    folder.mkdir()
    (folder / "sacctmgr").write_text(SACCTMGR)
    (folder / "sacctmgr").chmod(0o755)
    heads = ["Account", "User", "Partition", *limits._OF_ASSOCIATIONS]
    nothing = dict.fromkeys(heads, "")
    rows = [
        {"Account": "root"},
        {"Account": "physics", "GrpTRES": "gres/gpu=8", "MaxWall": "1-00:00:00"},
        {"Account": "physics", "User": "ada", "MaxJobs": "2"},
    ]
    table = [heads, *([*{**nothing, **row}.values()] for row in rows)]
    (folder / "limits").write_text("".join("|".join(words) + "\n" for words in table))
    (folder / "qos").write_text("|".join(["Name", *limits._OF_QOS]) + "\nnormal|||||||\n")
    (folder / "tres").write_text("Type|Name\ncpu|\ngres|gpu\n")
    (folder / "may").write_text("Account|User|Partition|QOS\nphysics|||normal\n")
    (folder / "associations").write_text(
        "User|Account|Partition|QOS|Def Acct|Coord Accounts\nada|physics||normal|physics|\n"
    )
    return line


def table(site: CommandLine, text: str, name: str = "quotas.csv") -> str:
    (site.folder / name).write_text(text)
    return str(site.folder / name)


def ids(site: CommandLine) -> list[str]:
    return [quota.id for quota in read_policy((site.folder / "policy.yaml").read_text(), "").quotas]


def test_a_file_is_shown_as_a_diff_and_written_once(site: CommandLine) -> None:
    file = table(site, TABLE)
    code, out, err = site.run(ImportApp, file, "--dry-run")
    assert (code, err) == (1, "")
    assert "+ - id: account-physics" in out
    assert "+   concurrent_gpus: 4" in out
    assert "sacctmgr -i add account new cluster=lab" in out
    assert "sacctmgr -i add user zoe account=physics cluster=lab" in out
    assert "sacctmgr -i add user tina account=new cluster=lab" in out
    assert "new gets its GPU time when Slurm has the account" in out
    assert out.endswith("Nothing was changed.\n")
    assert (site.statement(), (site.folder / "policy.yaml").read_text()) == ([], POLICY)

    code, _, err = site.run(ImportApp, file)
    assert (code, "add --yes" in err) == (2, True)
    assert (site.statement(), (site.folder / "policy.yaml").read_text()) == ([], POLICY)

    code, out, _ = site.run(ImportApp, file, "--yes", "--reason", "Allocations")
    assert code == 1, "commands for Slurm are left"
    assert "It is written." in out
    assert ids(site) == ["each", "account-physics"]
    [entry] = site.statement()
    assert (entry.account, entry.amount, entry.reason) == ("physics", 100 * GPU_HOUR, "Allocations")

    before = (site.folder / "policy.yaml").stat().st_mtime_ns
    code, out, _ = site.run(ImportApp, file, "--yes")
    assert "Nothing is to be changed." in out
    assert len(site.statement()) == 1
    assert (site.folder / "policy.yaml").stat().st_mtime_ns == before
    code, out, _ = site.run(ImportApp, table(site, "account,granted\nphysics,60\n"), "--yes")
    assert (code, "-40" in out) == (0, True)
    assert site.json(ShowApp)["accounts"]["physics"]["left"] == 60 * GPU_HOUR


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("account,granted\nphysics,ten\nphysics,\n", "a.csv", ["a.csv, line 2: granted: give GPU-hours"]),
        (
            "account,concurrent_gpus,time_limit\nphysics,8,1h\n\nbio,x,\nchem,,5\n",
            "a.csv",
            [
                "a.csv, line 4: concurrent_gpus: give a whole number",
                "a.csv, line 5: time_limit: give a time with its unit",
            ],
        ),
        ("account,gpus\nphysics,8\n", "a.csv", ["a.csv, line 1: unknown columns: gpus."]),
        ("account,sessions\nphysics,8,9\n", "a.csv", ["line 2: it has 3 cells, and the header has 2"]),
        ('account,sessions\n"physics,8\n', "a.csv", ["is not CSV"]),
        ("", "a.csv", ["is empty"]),
        (
            '{"quotas": [\n{"account": "a",\n\t"sessions": "x"}]}',
            "a.json",
            ["a.json, line 3: sessions: give a whole number"],
        ),
        (
            '{"quotas": [\n{"account": "a",\n"sessions": 1,\n"sessions": 2}]}',
            "a.json",
            ["line 4: sessions is there already"],
        ),
        (
            "quotas:\n- {account: a, sessions: 1}\n- {account: a, sessions: 2}\n",
            "a.yaml",
            ["line 3: id account-a is there already, in line 2"],
        ),
        ("quotas:\n- 7\n", "a.yaml", ["line 2: each entry has keys"]),
        ("- 7\n", "a.yaml", ["no list named quotas"]),
        ("", "a.txt", ["whose name ends in one of .csv"]),
    ],
)
def test_an_error_names_its_line_and_nothing_is_written(
    site: CommandLine, text: str, name: str, said: list[str]
) -> None:
    code, _, err = site.run(ImportApp, table(site, text, name), "--yes")
    assert code == 2
    for words in said:
        assert words in err
    assert (site.statement(), (site.folder / "policy.yaml").read_text()) == ([], POLICY)


def test_a_slurm_that_does_not_answer_is_not_taken_for_one_without_accounts(site: CommandLine) -> None:
    (site.folder / "bin" / "silent").touch()
    for argv in ((table(site, TABLE), "--yes"), ("--from-slurm", "--yes")):
        code, _, err = site.run(ImportApp, *argv)
        assert (code, "Slurm does not answer, so nothing was changed." in err) == (2, True)
    assert (site.statement(), (site.folder / "policy.yaml").read_text()) == ([], POLICY)
    assert site.run(ImportApp, table(site, TABLE), "--yes", "--no-check")[0] == 0
    assert {entry.account for entry in site.statement()} == {"physics", "new"}


def test_limits_of_slurm_become_rules_once(site: CommandLine) -> None:
    code, out, _ = site.run(ImportApp, "--from-slurm", "--yes")
    assert code == 0
    assert ids(site) == ["each", "slurm-account-physics", "slurm-user-ada"]
    assert "+   time_limit: 24h" in out
    code, out, _ = site.run(ImportApp, "--from-slurm", "--yes")
    assert (code, out) == (0, "Nothing is to be changed.\n")


def test_rules_that_the_file_does_not_have_stay_unless_they_are_replaced(site: CommandLine) -> None:
    file = table(site, "user;sessions\nzoe;2\n")  # as spreadsheets write it in some countries
    assert site.run(ImportApp, file, "--yes")[0] == 0
    assert ids(site) == ["each", "user-zoe"]
    code, out, _ = site.run(ImportApp, file, "--replace", "--yes")
    assert (code, "- - id: each" in out) == (0, True)
    assert ids(site) == ["user-zoe"]


def test_a_policy_in_the_hubs_own_file_is_not_changed(line: CommandLine) -> None:
    file = table(line, TABLE)
    code, _, err = line.run(ImportApp, file, "--yes", "--no-check")
    assert (code, "name a file in CarmeQuotas.policy_file" in err) == (1, True)
    assert line.statement() == []


@pytest.mark.parametrize("form", ["csv", "json"])
def test_what_is_exported_is_imported_without_a_change(site: CommandLine, form: str) -> None:
    site.run(ImportApp, table(site, "account,granted,sessions,gpu_types\nphysics,90 min,3,none\n"), "--yes")
    site.grant("physics", "10h", "--reason", "x", "--expires", "2099-01-01")
    code, out, err = site.run(ExportApp, *(["--json"] if form == "json" else []))
    assert (code, err) == (0, "")
    if form == "json":
        [physics, *rules] = json.loads(out)["quotas"]
        assert physics == {
            "account": "physics",
            "granted": "1h 30min",
            "credits": 10,
            "used": 0,
            "held": 0,
            "left": 11.5,
            "users": ["ada"],
        }
        assert [rule["id"] for rule in rules] == ["each", "account-physics"]
    else:
        assert out.splitlines()[0].startswith("account,user,granted,users,credits,used,held,left,id,")
        assert out.splitlines()[1].startswith("physics,,1h 30min,ada,10,0,0,11.5,,")
    code, out, _ = site.run(ImportApp, table(site, out, f"again.{form}"), "--replace", "--yes")
    assert (code, out) == (0, "Nothing is to be changed.\n")


def test_an_export_goes_out_while_slurm_is_silent(site: CommandLine) -> None:
    (site.folder / "bin" / "silent").touch()
    code, out, err = site.run(ExportApp)
    assert (code, "the users of accounts are left out" in err) == (0, True)
    assert "each" in out


def test_every_key_of_a_quota_is_a_column(tmp_path: Path) -> None:
    from carme_hub.domain.quotas import policy
    from carme_hub.domain.quotas.exchange.rows import KEYS

    assert set(policy._QUOTA_KEYS) <= set(KEYS)
    assert parse_policy({"quotas": []}).quotas == ()
