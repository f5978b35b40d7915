"""``carme-hub quotas report --by group``: groups come from JupyterHub's own database."""

from __future__ import annotations

import time
from typing import Any

import pytest
from jupyterhub import orm
from rig.command_line import CommandLine, line

from carme_hub.cli.quotas.show import ReportApp
from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.domain.ledger.usage import Usage

__all__ = ["line"]
MEMBERS = {"course": ("ada", "bob"), "staff": ("ada",), "account:physics": ("ada", "bob"), "role:teacher": ("bob",)}


@pytest.fixture
def site(line: CommandLine) -> CommandLine:
    """Three jobs of this month: of who is in two groups, in one, and in none."""
    for number, (user, hours) in enumerate((("ada", 3), ("bob", 2), ("eve", 1)), 1):
        line.used(job(number, user, hours))
    return line


def job(number: int, user: str, hours: int) -> Usage:
    end = int(time.time()) - 60
    return Usage(
        *(number, str(number), "train", user, "physics", "gpu", "normal", "COMPLETED", Phase.TERMINAL),
        *(float(end - hours * 3600 - 1), float(end - hours * 3600), float(end), (Gpus("a100", 1),)),
    )


def name_groups(line: CommandLine) -> None:
    """Give the hub's own database its groups and their members."""
    line.file.write_text(line.file.read_text() + f"c.JupyterHub.db_url = 'sqlite:///{line.folder}/hub.sqlite'\n")
    session = orm.new_session_factory(f"sqlite:///{line.folder}/hub.sqlite")()
    users = {name: orm.User(name=name) for name in ("ada", "bob", "eve")}
    session.add_all(users.values())
    session.add_all(orm.Group(name=name, users=[users[one] for one in who]) for name, who in MEMBERS.items())
    session.commit()
    session.close()
    session.get_bind().dispose()


def months() -> list[str]:
    """Return this month and the one before: a job may have begun in it."""
    now = time.localtime()
    return [f"{now.tm_year}-{now.tm_mon:02}", f"{now.tm_year - (now.tm_mon == 1)}-{(now.tm_mon - 2) % 12 + 1:02}"]


def both(line: CommandLine, *argv: str) -> list[dict[str, Any]]:
    return [line.json(ReportApp, "--month", month, *argv) for month in months()]


def test_who_is_in_several_groups_counts_in_each_and_once_in_the_total(site: CommandLine) -> None:
    name_groups(site)
    found: dict[str, int] = {}
    reports = both(site, "--by", "group")
    for row in (row for each in reports for row in each["rows"]):
        found[row["name"]] = found.get(row["name"], 0) + row["amount"]
    assert found == {"course": 5 * GPU_HOUR, "staff": 3 * GPU_HOUR, "no group": GPU_HOUR}
    assert sum(each["total"]["amount"] for each in reports) == 6 * GPU_HOUR
    assert [each["total"] for each in reports] == [each["total"] for each in both(site, "--by", "user")]
    code, out, _ = site.run(ReportApp, "--by", "group")
    assert code == 0
    assert "a user in several groups counts in each; the total counts every job once" in out
    lines = site.run(ReportApp, "--by", "group", "--csv")[1].splitlines()
    assert (lines[0].partition(",")[0], lines[-1].partition(",")[0]) == ("group", "total")


def test_without_the_hubs_database_it_says_where_to_ask(site: CommandLine) -> None:
    code, out, err = site.run(ReportApp, "--by", "group")
    assert (code, out) == (2, "")
    assert "so the groups are not known" in err
    assert "Administration, Report" in err
    assert "report?by=group" in err
    assert site.run(ReportApp, "--by", "user")[0] == 0
