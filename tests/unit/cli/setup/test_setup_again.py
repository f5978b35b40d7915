"""``carme-hub setup`` run again: what was said and found stays, silence is unknown, what it leaves is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from forged_setup import GIVEN, HUB_CONFIG, NODES, CommandLine
from traitlets.config import PyFileConfigLoader

from carme_hub.domain.sessions.profile_list import parse_profiles
from carme_hub.slurm.command import Answer

RECORD = "etc/carme-hub/setup-record.json"


def person(monkeypatch: pytest.MonkeyPatch, **said: str) -> list[str]:
    """Sit a person at a terminal who says this, yes to the rest, and takes what is proposed; return what is asked."""
    asked: list[str] = []

    def answer(prompt: str = "") -> str:
        asked.append(prompt.splitlines()[-1].strip())
        return "y" if "[y/N]" in prompt else said.get(asked[-1].partition(" [")[0], "")

    class Terminal:
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("builtins.input", answer)
    monkeypatch.setattr("sys.stdin", Terminal())
    return asked


def test_asked_again_it_proposes_what_was_said_and_keeps_what_is_not_asked(
    line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    line.write("--quotas", "yes", "--state-folder", "/srv/hub", "--hub-port", "9081", "--memory-max", "8G")
    before = line.files()
    asked = person(monkeypatch)
    code, out, err = line.run("--ask-again")
    assert (code, out.splitlines()[-1]) == (0, "nothing to do"), out + err
    assert "group [gpu-users]:" in asked
    assert "admin_group [hub-admins]; - is nothing:" in asked
    assert {path: text for path, text in line.files().items() if path != RECORD} == {
        path: text for path, text in before.items() if path != RECORD
    }


def test_an_answer_can_be_taken_back(line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    line.write()
    assert 'role_groups = {"admin": {"hub-admins"}}' in line.files()[HUB_CONFIG]
    code, _, _ = line.run("--no-input", "--yes", "--admin-group=")
    assert code == 0
    assert '"hub-admins"}}' not in line.files()[HUB_CONFIG].replace("# c.Carme", "")
    line.write()
    person(monkeypatch, admin_group="-")
    assert line.run("--ask-again")[0] == 0
    assert json.loads(line.files()[RECORD])["answers"]["admin_group"] == ""
    code, _, err = line.run("--no-input", "--yes", "--group=")
    assert (code, "These answers are missing:\n  group:" in err) == (2, True)


def test_what_this_machine_said_the_first_time_stays(line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {name: text for name, text in GIVEN.items() if name not in ("host", "web_server", "tls_certificate")}
    line.answer(**given)
    monkeypatch.setattr("socket.getfqdn", lambda: "hub1.example.org")
    monkeypatch.setattr("carme_hub.cli.setup.find._PROGRAMS", ())
    assert line.write()[0] == 0
    before = line.files()
    monkeypatch.setattr("socket.getfqdn", lambda: "localhost")
    monkeypatch.setattr("carme_hub.cli.setup.find._PROGRAMS", ("sh",))
    monkeypatch.setattr("carme_hub.cli.setup.questions._web", lambda *_: "nginx")
    monkeypatch.setattr("carme_hub.cli.setup.find._addresses", lambda _: ("10.9.9.9",))
    code, out, err = line.write()
    assert (code, out.splitlines()[-1]) == (0, "nothing to do"), out + err
    assert line.files() == before
    code, out, _ = line.write("--hub-address", "10.9.9.9")
    assert "+c.JupyterHub.hub_bind_url" in out, "who says it moves the hub"


def test_an_image_that_cannot_be_read_for_a_while_is_still_what_it_was(line: CommandLine, tmp_path: Path) -> None:
    image = tmp_path / "images/default"
    image.mkdir(parents=True)
    (image / "image.json").write_text(json.dumps({"name": "usual", "format": "dir", "base": "host"}))
    line.answer(**{**GIVEN, "image": str(image), "container_runtime": "bubblewrap"})
    code, _, err = line.write()
    assert code == 0, err
    assert '"base": "host"' in line.files()[HUB_CONFIG]
    image.rename(tmp_path / "not mounted")
    code, out, err = line.write()
    assert (code, out.splitlines()[-1]) == (0, "nothing to do")
    assert f"{image} cannot be read here now" in err


def test_a_look_writes_nothing_at_all(line: CommandLine) -> None:
    line.write()
    before = line.files()
    line.answer(**GIVEN, partitions="cpu,gpu")
    code, out, _ = line.run("--answers", str(line.answers), "--no-input")
    assert (code, out.splitlines()[-1]) == (0, "nothing to do")
    assert line.files() == before
    line.write()
    assert json.loads(line.files()[RECORD])["answers"]["partitions"] == "cpu,gpu"


def test_the_end_of_the_input_is_a_no(line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    person(monkeypatch)

    def gone(_: str = "") -> str:
        raise EOFError

    monkeypatch.setattr("builtins.input", gone)
    code, _, err = line.run("--answers", str(line.answers), "--test-user=", "--submit-via=sudo", "--partitions=gpu")
    assert (code, line.files()) == (2, {})
    assert "the input has ended; nothing was written" in err
    monkeypatch.setattr("carme_hub.cli.setup.command.SetupApp._ask", lambda _self, _question, default, _wrong: default)
    code, _, err = line.run("--answers", str(line.answers))
    assert (code, line.files()) == (1, {})
    assert "Nothing was done." in err


def test_a_file_of_a_person_is_shown_once_where_it_is_written(line: CommandLine) -> None:
    line.write()
    config = line.root / HUB_CONFIG
    config.write_text(config.read_text() + "# mine\n")
    assert line.write("--force")[1].count("-# mine") == 1


@pytest.mark.parametrize(("status", "ends"), [(0, 0), (1, 1), (2, 1), (3, 0)])
def test_a_doctor_that_could_not_look_at_the_configuration_is_no_success(
    line: CommandLine, monkeypatch: pytest.MonkeyPatch, status: int, ends: int
) -> None:
    """3: something could not be checked, as before the first session."""

    async def doctor(_self: object) -> Answer:
        return Answer(status, "what the doctor says\n", "")

    monkeypatch.setattr("carme_hub.cli.setup.command.AsHub.doctor", doctor)
    code, out, _ = line.write("--test")
    assert (code, "what the doctor says" in out) == (ends, True)


def test_gpus_without_a_type_are_not_offered_and_it_is_said(line: CommandLine) -> None:
    (line.prefix / "nodes").write_text(NODES.replace("gpu:a100:4", "gpu:4").replace("gpu:h100:8", "gpu:8"))
    code, out, err = line.write()
    assert code == 0, err
    assert "8 × GPU without a type" in out
    assert "GPUs of gpu:  not offered where Slurm has no type of them: Gres=gpu:TYPE:N in slurm.conf" in out
    file = line.root / HUB_CONFIG
    config: Any = PyFileConfigLoader(file.name, str(file.parent)).load_config()
    found = parse_profiles(config.SlurmContainerSpawner.profile_list)
    assert [(each.slug, each.gpus) for each in found] == [("cpu", None), ("gpu", None)]


def test_a_name_that_a_profile_cannot_have_is_said_before_anything_is_written(line: CommandLine) -> None:
    partitions = (line.prefix / "partitions").read_text()
    (line.prefix / "partitions").write_text(partitions.replace("AllowAccounts=physics,", "AllowAccounts=phy$ics,"))
    code, _, err = line.write()
    assert (code, line.files()) == (2, {})
    assert "phy$ics" in err


def test_accounting_that_is_silent_is_unknown_and_not_empty(line: CommandLine) -> None:
    (line.prefix / "bin/sacctmgr").write_text("#!/bin/sh\necho 'sacctmgr: error: Connection refused' >&2\nexit 1\n")
    code, out, err = line.write()
    assert code == 0, err
    assert "accounts   not known: Slurm's accounting does not answer" in out
    assert "Slurm's accounting did not list accounts: sacctmgr: error: Connection refused" in err


def test_the_hub_asks_the_slurm_that_this_shell_asks(line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit has neither the shell's PATH nor its SLURM_CONF, which a site's profile or module sets."""
    line.answers.write_text(yaml.safe_dump(GIVEN))
    monkeypatch.setenv("PATH", f"{line.prefix}/bin:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_CONF", "/opt/slurm/etc/slurm.conf")
    code, _, err = line.write()
    assert code == 0, err
    assert f'c.CarmeSlurm.slurm_prefix = "{line.prefix}"' in line.files()[HUB_CONFIG]
    assert 'c.CarmeSlurm.slurm_conf = "/opt/slurm/etc/slurm.conf"' in line.files()[HUB_CONFIG]
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("SLURM_CONF")
    assert line.write()[1].endswith("nothing to do\n"), "another shell asks the same"


def test_a_proxy_that_only_this_shell_finds_is_missing(line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = line.prefix / "node/bin"
    programs.mkdir(parents=True)
    for name in ("node", "configurable-http-proxy"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    monkeypatch.setattr("carme_hub.cli.setup.find.SEARCH", "/usr/bin:/bin")
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    assert "npm install -g configurable-http-proxy" in line.write()[1]


def test_without_sbatch_it_says_what_to_install(line: CommandLine) -> None:
    (line.prefix / "bin/sbatch").unlink()
    code, _, err = line.write()
    assert (code, line.files()) == (2, {})
    assert f"There is no sbatch in {line.prefix}/bin" in err


def test_a_second_hub_has_ports_and_a_folder_of_its_own_by_itself(line: CommandLine) -> None:
    line.write("--quotas", "yes")
    code, _, err = line.write("--site", "hub2", "--quotas", "yes")
    assert code == 0, err
    config = line.files()["etc/hub2/jupyterhub_config.py"]
    assert ':9000"' in config
    assert ':9001"' in config
    assert ':9081"' in config
    assert "c.CarmeQuotas.port = 11102\n" in config
    assert config.index("c.CarmeQuotas.port") < config.index("carme_hub.configure("), "the service's address has it"
    code, _, err = line.write("--site", "hub3", "--hub-port", "8081", "--state-folder", "/var/lib/carme-hub")
    assert code == 2
    assert "hub_port: 8081: hub_port of the hub carme-hub is that port already" in err
    assert "state_folder: /var/lib/carme-hub: the state folder of the hub carme-hub is there" in err
    line.run("--remove", "--yes")
    assert line.write("--site", "hub2")[1].endswith("nothing to do\n"), "ports stay when the first hub goes"


def test_it_names_links_of_the_web_server_that_would_lead_nowhere(line: CommandLine) -> None:
    line.write()
    sites = line.root / "etc/nginx/conf.d"
    sites.mkdir(parents=True)
    (sites / "carme-hub.conf").symlink_to("/etc/carme-hub/nginx.conf")
    (sites / "near.conf").symlink_to("../../carme-hub/nginx.conf")
    (sites / "other.conf").symlink_to("/etc/other/nginx.conf")
    for argv in (("--remove", "--no-input"), ("--web-server", "caddy", "--no-input")):
        out = line.run(*argv)[1]
        for name in ("carme-hub.conf", "near.conf"):
            link = f"/etc/nginx/conf.d/{name}"
            assert f"yours  {link} leads to /etc/carme-hub/nginx.conf, which goes: rm {link} && systemctl" in out
        assert "other.conf" not in out


def test_a_root_that_is_this_machine_is_this_machine(line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    line.root = Path("/usr/..")
    code, _, err = line.run("--no-input")
    assert code == 2
    assert "run it as root" in err
