"""Every `carme-hub` command in the docs exists with its options; those by role that need nothing real are run."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest
from jupyterhub import orm
from rig.command_line import CommandLine, line
from rig.command_words import commands, commands_in, leaf, wrong

from carme_hub.cli.init import InitApp

__all__ = ["line"]
ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
ROLES = [
    DOCS / "roles" / f"{name}.md" for name in ("an-hour", "year-one", "when-it-breaks", "notebook-user", "many-nodes")
]
PAGES = sorted(
    [*DOCS.rglob("*.md"), *(ROOT / "examples").rglob("*.md"), *(ROOT / "deploy").rglob("*.md"), ROOT / "README.md"]
)

#: What these commands need beside a configuration; other tests run them where it is.
NEEDS = {
    "image build": "minutes, and PyPI: tests/cluster",
    "setup": "Slurm: tests/cluster/sandbox/test_site_setup.py",
    "idle replay": "use that was measured: tests/unit/cli/idle",
    "quotas replay": "Slurm's accounting: tests/cluster/quotas",
    "quotas grant": "Slurm's accounts: tests/cluster/quotas",
    "quotas import": "Slurm's accounts: tests/cluster/quotas/test_quotas_exchange.py",
    "users offboard": "a hub and Slurm: tests/cluster/sessions/test_people_leave.py",
    "quotas reconcile": "Slurm's accounting: tests/cluster/quotas",
    "nodes update": "a hub: tests/cluster/sessions/test_nodes_updated.py",
    "console stop-starts": "a hub: tests/cluster/sessions/test_console_story.py",
    "console allow-starts": "a hub: tests/cluster/sessions/test_console_story.py",
    "console starts": "a hub: tests/cluster/sessions/test_console_story.py",
    "explain": "a session: tests/unit/cli/explain",
    "standby": "PostgreSQL: tests/cluster/two_hubs",
    "session start": "a hub: tests/cluster/sessions/test_session_command.py",
    "session list": "a hub: tests/cluster/sessions/test_session_command.py",
    "session stop": "a hub: tests/cluster/sessions/test_session_command.py",
    "reservations free": "a hub: tests/cluster/calendar/test_reservations_interfaces.py",
    "reservations book": "a hub: tests/cluster/calendar/test_reservations_interfaces.py",
    "reservations list": "a hub: tests/cluster/calendar/test_reservations_interfaces.py",
    "train": "a session: tests/cluster/training",
    "runs": "a session: tests/cluster/training",
    "templates": "a session: tests/unit/training/templates",
    "scaling run": "a session: tests/cluster/training/test_scaling_live.py",
    "scaling report": "a session: tests/cluster/training/test_scaling_live.py",
}
#: The others, with what their exit status may be on a machine without Slurm and without sessions.
RUN = {
    "convert": {1},  # something has to be looked at
    "doctor": {1, 3},  # Slurm is not there
    "backup": {0},
    "backup check": {0},
    "db check": {0},
    "db backup": {0},
    "db upgrade": {0},
    "restore": {0},
    "slo": {0},
    "quotas show": {0},
    "quotas anomalies": {0},
    "quotas export": {0},
    "nodes install-check": {0},
    "upgrade": {0, 1, 3},
    "support-bundle": {0},
}


def name_of(words: list[str]) -> str:
    """Return a command without its options and arguments."""
    app, rest = leaf(words)
    name = words[: len(words) - len(rest)]
    if name == ["scaling"] and rest:
        name = [*name, rest[0]]
    assert app.start is not None
    return " ".join(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_in_the_docs_exists_with_its_options(page: Path) -> None:
    assert [why for words in commands(page) if (why := wrong(words))] == []


def test_what_does_not_exist_is_found() -> None:
    text = """
    carme-hub doctor --no-slrum          # a comment
    $ sudo carme-hub quotas shwo
    15 4 * * *  root  carme-hub backup --keep 14 --two /mnt >/dev/null || echo no
    ExecStart=/opt/carme-hub/bin/carme-hub standbye --config x
    ln -s "$(carme-hub image build --stroe=/opt)" /opt/images/default
    carme-hub train -n 4 --nodse 2 train.py --lr 0.1
    carme-hub runs lgo last
    """
    said = [wrong(words) for words in commands_in(text)]
    names = ("--no-slrum", "shwo", "--two", "standbye", "--stroe", "--nodse", "lgo")
    assert len(said) == len(names)
    assert [name for name, why in zip(names, said, strict=True) if name not in why] == []
    right = """
    carme-hub console sessions --use-below 5 --sort -since
    carme-hub train -n 4 train.py --lr 0.1; carme-hub backup check FILE
    """
    assert [wrong(words) for words in commands_in(right)] == ["", "", ""]


def test_every_page_by_role_has_commands_and_says_which_are_run() -> None:
    found = {page.stem: [name_of(words) for words in commands(page)] for page in ROLES}
    assert all(len(names) > 3 for names in found.values())
    names = {name for each in found.values() for name in each}
    assert names == NEEDS.keys() | RUN.keys()
    assert NEEDS.keys().isdisjoint(RUN)


def test_the_tests_that_run_the_others_are_there() -> None:
    for why in NEEDS.values():
        assert (ROOT / why.rpartition(": ")[2]).exists(), why


@pytest.mark.parametrize("page", ROLES, ids=lambda page: page.stem)
def test_every_block_of_a_page_by_role_is_a_script_of_bash(page: Path) -> None:
    blocks = re.findall(r"^```\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert blocks
    for block in blocks:
        done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True, timeout=20)
        assert done.returncode == 0, block + done.stderr


@pytest.fixture
def site(line: CommandLine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """A site without Slurm, as `carme-hub init` leaves it, with the files that the pages name."""
    for name in ("CONFIGPROXY_AUTH_TOKEN", "JUPYTERHUB_CRYPT_KEY", "CARME_SMTP_PASSWORD", "JUPYTERHUB_API_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(line.folder)
    InitApp(config_path=str(line.file)).start()
    (line.folder / "secrets").write_text("OAUTH_CLIENT_SECRET=hidden\n")
    (line.folder / "secrets").chmod(0o600)
    old = ROOT / "tests/foreign/sites/batchspawner_ssh/jupyterhub_config.py"
    (line.folder / "old_config.py").write_text(old.read_text())
    rows = orm.new_session_factory(
        f"sqlite:///{line.folder / 'state' / 'jupyterhub.sqlite'}"
    )()  # as its first start does
    rows.close()
    rows.get_bind().dispose()
    capsys.readouterr()
    return line


def test_the_commands_by_role_that_need_nothing_real_do_what_they_say(site: CommandLine) -> None:
    places = {
        "/etc/carme-hub/jupyterhub_config.py": str(site.file),
        "/etc/carme-hub/secrets": str(site.folder / "secrets"),
        "/etc/jupyterhub/jupyterhub_config.py": str(site.folder / "old_config.py"),
        "/opt/carme-hub/node": str(site.folder / "node"),
        "~": str(site.folder),
    }
    done = []
    for words in [words for page in ROLES for words in commands(page)]:
        if (name := name_of(words)) not in RUN or "--from-slurm" in words or "4711" in words:
            continue
        backups = sorted((site.folder / "backups").glob("*.tar.gz"))
        newest = str(backups[-1]) if backups else ""
        app, rest = leaf(words)
        for place, word in enumerate(rest):
            rest[place] = newest if word.startswith("/mnt/backups/") else places.get(word, word)
        rest = [word.replace("/mnt/backups", str(site.folder / "backups")) for word in rest]
        given = [] if "--config" in rest or name in ("convert", "nodes install-check") else ["--config", str(site.file)]
        if name == "restore":
            given.append("--yes")  # there is no terminal to ask on
        if name == "backup":
            time.sleep(1.1)  # its file has the second in its name
        code, out, err = run(site, app, *rest, *given)
        assert code in RUN[name], (words, code, out, err)
        done.append(name)
    assert set(done) == RUN.keys()


def run(site: CommandLine, app: type, *argv: str) -> tuple[int, str, str]:
    """Run a command in this process; one that returns has done what it should."""
    command = app()
    code = 0
    try:
        command.initialize([*argv])
        command.start()
    except SystemExit as end:
        code = int(end.code or 0)
    output = site._capsys.readouterr()
    return code, output.out, output.err
