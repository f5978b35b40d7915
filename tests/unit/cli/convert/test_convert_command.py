"""``carme-hub convert``: what goes where, what is never overwritten, and exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from carme_hub.cli.convert.command import ConvertApp

OLD = 'c.SlurmSpawner.req_partition = "gpu"\nc.GenericOAuthenticator.client_secret = "hush"\n'
COMPLETE = """\
c.Authenticator.allowed_users = {"tina"}
c.SlurmSpawner.req_partition = "gpu"
c.SlurmSpawner.req_cluster = "ada"
c.SlurmSpawner.batch_script = "apptainer exec /i/a.sif {cmd}"
"""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    file = tmp_path / "jupyterhub_config.py"
    file.write_text(OLD)
    return file


def run(*words: object) -> int:
    app = ConvertApp()
    app.initialize([str(word) for word in words])
    with pytest.raises(SystemExit) as end:
        app.start()
    return int(end.value.code or 0)


def test_the_new_file_goes_to_stdout_and_the_findings_to_stderr(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(old) == 1
    out, err = capsys.readouterr()
    assert out.startswith('"""Carme Hub')
    assert '"partition": "gpu"' in out
    assert "jupyterhub_config.py:1: SlurmSpawner.req_partition: changed: `partition` of the profile" in err
    assert "hush" in out  # the setting stays as it is
    assert "hush" not in err
    assert old.read_text() == OLD


def test_the_output_is_private_and_overwrites_nothing(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = old.with_name("new.py")
    assert run(old, "--output", new) == 1
    assert new.stat().st_mode & 0o777 == 0o600
    assert capsys.readouterr().out == ""
    before = new.read_text()
    assert run(old, f"--output={new}") == 2
    assert "is not overwritten" in capsys.readouterr().err
    assert run(old, f"--output={old}") == 2
    assert (new.read_text(), old.read_text()) == (before, OLD)


def test_json_has_findings_and_configuration(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(old, "--json", "--state-folder=/srv/hub") == 1
    document = json.loads(capsys.readouterr().out)
    assert 'state_folder="/srv/hub"' in document["configuration"]
    assert {
        "file": "jupyterhub_config.py",
        "line": 1,
        "setting": "SlurmSpawner.req_partition",
        "level": "changed",
        "sentence": "`partition` of the profile",
    } in document["findings"]


def test_nothing_to_look_at_is_success(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old.write_text(COMPLETE)
    assert run(old) == 0
    assert "0 look at it" in capsys.readouterr().err


def test_files_that_cannot_be_read_and_wrong_words(
    old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "missing.py") == 2
    assert run(tmp_path) == 2
    assert "no form.yml" in capsys.readouterr().err
    assert run(old, "--state-folder=here") == 2
    assert run() == 2
    old.write_text("{% if x %}\n")
    assert run(old) == 2
    assert "jupyterhub_config.py:1: this is not Python" in capsys.readouterr().err


def test_sinfo_is_read_from_its_file(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old.write_text(
        'c.MOSlurmSpawner.partitions = {"cpu": {"architecture": "x86", "description": "CPU", "simple": True}}\n'
    )
    sinfo = old.with_name("sinfo.txt")
    sinfo.write_text("cpu|96|384000|1-00:00:00|(null)\n")
    assert run(old, "--sinfo", sinfo) == 1
    assert '"cpus": {"min": 1, "max": 96, "default": 1}' in capsys.readouterr().out
