"""``carme-hub setup`` before a Slurm that is forged: shown, written, nothing twice, a person's changes, removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from forged_setup import GIVEN, HUB_CONFIG, PARTITIONS, CommandLine


def test_it_shows_everything_and_writes_only_what_was_confirmed(line: CommandLine) -> None:
    code, out, err = line.run("--answers", str(line.answers), "--no-input")
    assert (code, line.files()) == (1, {})
    assert "Nothing was written: add --yes." in err
    assert '+c.CarmeSlurm.cluster = "ada"' in out
    assert f"write  /{HUB_CONFIG}  the hub's configuration" in out
    assert "partition  gpu: 2 nodes, up to 96 CPUs, 1000 GiB, 4 × a100, 8 × h100; 2880 min" in out
    code, out, err = line.run("--answers", str(line.answers))
    assert (code, line.files()) == (2, {})
    assert "There is no terminal to ask on: add --yes" in err


def test_the_second_run_has_nothing_to_do_and_needs_no_answers(line: CommandLine) -> None:
    assert line.write()[0] == 0
    before = line.files()
    assert {path.split("/")[1] for path in before if path.startswith("etc/")} == {
        *("carme-hub", "logrotate.d", "sudoers.d", "systemd"),
    }
    for again in (line.write(), line.run("--no-input", "--yes")):
        assert (again[0], again[1].splitlines()[-1]) == (0, "nothing to do")
    assert line.files() == before


def test_a_new_partition_and_a_new_answer_are_written_and_nothing_else(line: CommandLine) -> None:
    line.write()
    (line.prefix / "partitions").write_text(PARTITIONS.replace("Hidden=YES", "Hidden=NO"))
    code, out, _ = line.run("--no-input", "--yes", "--memory-max", "8G")
    assert code == 0
    assert [text for text in out.splitlines() if text.startswith("wrote")] == [
        f"wrote /{HUB_CONFIG}",
        "wrote /etc/systemd/system/carme-hub.service",
    ]
    assert line.run("--no-input", "--yes")[1].endswith("nothing to do\n"), "the new answer is remembered"


def test_a_file_that_a_person_has_changed_is_shown_and_stays_without_force(line: CommandLine) -> None:
    line.write()
    config = line.root / HUB_CONFIG
    config.write_text(config.read_text() + "# mine\n")
    code, out, _ = line.write("--hub-port", "9000")
    assert code == 0
    assert f"/{HUB_CONFIG} was changed by a person and stays so; --force writes it" in out
    assert "-# mine" in out
    assert config.read_text().endswith("# mine\n")
    code, out, _ = line.write("--hub-port", "9000", "--force")
    assert f"wrote /{HUB_CONFIG} (yours is now /{HUB_CONFIG}~)" in out
    assert "9000" in config.read_text()
    assert config.with_name("jupyterhub_config.py~").read_text().endswith("# mine\n")


def test_a_second_hub_has_the_helpers_of_the_first_and_does_not_take_them_away(line: CommandLine) -> None:
    line.write()
    second = ("--site", "hub2", "--hub-port", "9081", "--public-port", "9000", "--proxy-api-port", "9001")
    code, out, _ = line.write(*second)
    assert (code, "write  /usr/local/" in out) == (0, False), "what is there is right already"
    code, out, _ = line.write(*second, "--group", "others")
    helpers = "/usr/local/etc/carme-submit.json"
    assert f"{helpers} is the hub carme-hub's (a folder of its own for this one: --libexec) and stays so" in out
    assert '"gpu-users"' in line.files()[helpers[1:]]
    code, out, _ = line.run("--site", "hub2", "--remove", "--yes")
    assert f"stays  {helpers}  (the hub carme-hub needs it)" in out
    assert {"usr/local/libexec/carme-submit", helpers[1:], HUB_CONFIG} <= line.files().keys()
    assert "etc/systemd/system/hub2.service" not in line.files()
    line.run("--remove", "--yes")
    assert line.files() == {}


def test_images_folders_and_data_on_nodes_come_with_what_is_left_to_do_and_go_again(line: CommandLine) -> None:
    data = ("--image-store", "/srv/images", "--folders", "/srv/folders", "--scratch", "/scratch")
    code, out, _ = line.write(*data, "--node-images", "/var/lib/carme-images")
    assert code == 0
    left = out[out.index("Left to you:") :]
    for folder in ("/srv/images", "/srv/folders"):
        assert f"install -d -o root -g root -m 755 {folder}\n" in left
    for command in ("nodes install-images", "staging install"):
        assert f"carme-hub {command}" in left
    units = {"etc/systemd/system/carme-hub-images.service", "etc/systemd/system/carme-hub-images.timer"}
    assert units <= line.files().keys()
    assert "images=True" in line.files()[HUB_CONFIG]
    assert line.run("--no-input", "--yes")[1].endswith("nothing to do\n")
    (line.root / "srv/folders").mkdir(parents=True)
    code, out, _ = line.write("--image-store=")
    assert (code, units & line.files().keys()) == (0, set())
    assert "CarmeImages" not in line.files()[HUB_CONFIG]
    assert "install -d" not in out


def test_what_adds_images_is_named_with_its_packages(line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("carme_hub.cli.setup.find.SEARCH", str(line.prefix / "bin"))
    line.answer(**GIVEN, submit_via="rest", rest_url="http://localhost:6820", image_store="/srv/images")
    (line.prefix / "bin/sudo").write_text("")
    (line.prefix / "bin/sudo").chmod(0o755)
    _, out, _ = line.write()
    assert "to add images:     apt-get install skopeo umoci bubblewrap squashfs-tools" in out


def test_another_web_server_takes_the_file_of_the_first_away(line: CommandLine) -> None:
    line.write()
    assert "etc/carme-hub/nginx.conf" in line.files()
    code, out, _ = line.write("--web-server", "caddy")
    assert code == 0
    assert "remove /etc/carme-hub/nginx.conf" in out
    assert "etc/carme-hub/nginx.conf" not in line.files()
    assert "etc/carme-hub/Caddyfile" in line.files()


def test_it_takes_itself_away_after_it_has_said_what_goes(line: CommandLine) -> None:
    line.write()
    own = line.root / "etc/carme-hub/site.py"
    own.write_text("c = get_config()\n")
    rules = line.root / "etc/sudoers.d/carme-hub"
    rules.chmod(0o640)
    rules.write_text("mine\n")
    before = line.files()
    code, out, _ = line.run("--remove", "--no-input")
    assert (code, line.files()) == (1, before)
    assert "stays  /etc/sudoers.d/carme-hub  (a person has changed it)" in out
    assert "stays  /var/lib/carme-hub  (databases, secrets, certificates)" in out
    assert line.run("--remove", "--yes")[0] == 0
    assert line.files() == {"etc/carme-hub/site.py": "c = get_config()\n", "etc/sudoers.d/carme-hub": "mine\n"}
    code, out, _ = line.run("--remove", "--yes")
    assert (code, out) == (0, "nothing to do: setup has written nothing for carme-hub here\n")


def test_what_is_missing_and_what_is_unknown_is_listed(line: CommandLine) -> None:
    line.answer(partitions="gpux", image="/opt/images/x", container_runtime="apptainer", web_server="none")
    code, _, err = line.write()
    assert (code, line.files()) == (2, {})
    assert "These answers are missing:\n  group: Group of the system whose members may log in" in err
    assert "partitions: there is no partition 'gpux'. Did you mean gpu?" in err


def test_without_slurms_commands_it_says_what_to_install(line: CommandLine, tmp_path: Path) -> None:
    line.answer(**{**GIVEN, "slurm_prefix": str(tmp_path / "nowhere")})
    code, _, err = line.write()
    assert code == 2
    assert f"There is no scontrol in {tmp_path}/nowhere/bin" in err
    assert "--slurm-prefix" in err


def test_a_controller_that_does_not_answer_is_no_empty_site(line: CommandLine) -> None:
    scontrol = line.prefix / "bin/scontrol"
    scontrol.write_text("#!/bin/sh\necho 'slurm_load_partitions: Unable to contact slurm controller' >&2\nexit 1\n")
    code, _, err = line.write()
    assert (code, line.files()) == (2, {})
    assert "Slurm does not answer: scontrol: slurm_load_partitions: Unable to contact slurm controller" in err


def test_a_node_of_each_partition_is_looked_at_where_its_user_may(line: CommandLine, tmp_path: Path) -> None:
    given = {name: text for name, text in GIVEN.items() if name != "container_runtime"}
    line.answer(**given, test_user="root" if os.geteuid() == 0 else "")
    srun = line.prefix / "bin/srun"
    srun.write_text(f'#!/bin/sh\necho "$*" >> {line.prefix}/sruns\necho \'carme-setup:["podman","apptainer"]\'\n')
    code, _, err = line.write()
    assert code == 0, err
    assert 'container_runtime = "apptainer"' in line.files()[HUB_CONFIG]
    calls = (line.prefix / "sruns").read_text()
    assert "--partition=cpu" in calls
    assert "--partition=gpu" in calls
    before = calls.count("--partition")
    assert line.run("--no-input", "--yes")[1].endswith("nothing to do\n")
    assert (line.prefix / "sruns").read_text().count("--partition") == before, "what was found is remembered"


def test_nodes_that_cannot_be_looked_at_are_asked_about(line: CommandLine) -> None:
    given = {name: text for name, text in GIVEN.items() if name != "container_runtime"}
    line.answer(**given, test_user="root" if os.geteuid() == 0 else "")
    code, _, err = line.write()
    assert code == 2
    assert "No node of the partition cpu could be looked at: srun: exit status 1" in err
    assert "  container_runtime: Container runtime of the nodes: bubblewrap, charliecloud" in err


def test_in_a_terminal_it_asks_what_it_does_not_know_and_once_only(
    line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    said = {"group": "gpu-users", "image": "/opt/images/x.sif", "container_runtime": "apptainer", "web_server": "none"}

    def person(prompt: str = "") -> str:
        name = prompt.splitlines()[-1].strip().partition(" [")[0]
        asked.append(name)
        return "y" if "[y/N]" in prompt else said.get(name, "")

    class Terminal:
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("builtins.input", person)
    monkeypatch.setattr("sys.stdin", Terminal())
    code, out, _ = line.run("--slurm-prefix", str(line.prefix), "--host", "hub.example.org")
    assert (code, out.count("wrote ")) == (0, len(line.files()) - 1)
    assert asked[:4] == ["group", "partitions", "image", "test_user"]
    assert "host" not in asked, "it was named on the command line"
    assert asked[-1] == "Write this?"
    assert "'format'" not in line.files()[HUB_CONFIG]
    assert '"format": "sif"' in line.files()[HUB_CONFIG]
    asked.clear()
    assert line.run()[1].endswith("nothing to do\n")
    assert asked == []
    (line.root / HUB_CONFIG).write_text("mine\n")
    assert line.run("--memory-max", "8G")[0] == 0
    assert asked[0].startswith(f"/{HUB_CONFIG} was changed by a person. Write it?")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--no-such"], "there is no option --no-such"),
        (["--answers", "/nowhere/site.yaml"], "cannot be read"),
        (["word"], "'word' is not an argument"),
        (["--site", "my hub", "--no-input"], "systemd and sudo take letters"),
    ],
)
def test_a_wrong_command_line_is_refused(line: CommandLine, argv: list[str], says: str) -> None:
    code, _, err = line.run(*argv)
    assert (code, line.files()) == (2, {})
    assert says in err
