"""Files on the disk: written once, never over a person's, by a record that nobody else can write, and taken away."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from carme_hub.cli.setup.disk import RECORD, Change, Disk, State
from carme_hub.cli.setup.plan import File
from carme_hub.cli.setup.record import Record
from carme_hub.errors import ConfigError

FOLDER = "/etc/carme-hub"
UNIT, RULES = "/etc/systemd/system/carme-hub.service", "/etc/sudoers.d/carme-hub"


def wanted(text: str = "[Unit]\n") -> list[File]:
    return [File(UNIT, text, "unit"), File(RULES, "x ALL=(%g) NOPASSWD: /bin/true\n", "rules", 0o440)]


def write(root: Path, files: list[File], answers: dict[str, str] | None = None) -> list[str]:
    disk = Disk(root, FOLDER)
    changes = [each for each in disk.compare(files) if each.state is not State.SAME]
    return list(disk.write(changes, answers or {}))


def states(root: Path, files: list[File]) -> dict[str, State]:
    return {each.path: each.state for each in Disk(root, FOLDER).compare(files)}


def change(root: Path, files: list[File], path: str) -> Change:
    (found,) = [each for each in Disk(root, FOLDER).compare(files) if each.path == path]
    return found


def test_what_is_new_is_shown_as_a_diff_and_written_with_its_mode(tmp_path: Path) -> None:
    assert change(tmp_path, wanted(), UNIT).diff.splitlines() == [
        "--- /dev/null",
        f"+++ {UNIT}",
        "@@ -0,0 +1 @@",
        "+[Unit]",
        f"# {UNIT}: mode 0644, root",
    ]
    assert write(tmp_path, wanted()) == [f"wrote {UNIT}", f"wrote {RULES}"]
    assert (tmp_path / RULES[1:]).stat().st_mode & 0o777 == 0o440
    assert states(tmp_path, wanted()) == {UNIT: State.SAME, RULES: State.SAME}
    record = tmp_path / "etc/carme-hub" / RECORD
    assert record.stat().st_mode & 0o777 == 0o600
    assert not list(tmp_path.rglob("*~")), "nothing half-written stays"


def test_a_text_of_setups_own_is_replaced_and_a_persons_is_not(tmp_path: Path) -> None:
    write(tmp_path, wanted())
    assert states(tmp_path, wanted("[Unit]\nA=1\n"))[UNIT] is State.OURS
    write(tmp_path, wanted("[Unit]\nA=1\n"))
    (tmp_path / UNIT[1:]).write_text("mine\n")
    found = change(tmp_path, wanted("[Unit]\nA=2\n"), UNIT)
    assert found.state is State.CHANGED
    assert "-mine" in found.diff
    assert list(Disk(tmp_path, FOLDER).write([found], {})) == [f"wrote {UNIT} (yours is now {UNIT}~)"]
    assert (tmp_path / f"{UNIT[1:]}~").read_text() == "mine\n", "nothing is lost"


def test_of_what_a_person_had_nothing_is_lost_when_it_is_written_over_twice(tmp_path: Path) -> None:
    unit = tmp_path / UNIT[1:]
    for number, text in enumerate(("mine\n", "mine again\n")):
        write(tmp_path, wanted(f"[Unit]\nA={number}\n"))
        unit.write_text(text)
        unit.chmod(0o600)
    assert write(tmp_path, wanted())[0] == f"wrote {UNIT} (yours is now {UNIT}.2~)"
    texts = {path.name: path.read_text() for path in unit.parent.iterdir()}
    assert texts == {unit.name: "[Unit]\n", f"{unit.name}~": "mine\n", f"{unit.name}.2~": "mine again\n"}
    assert (unit.parent / f"{unit.name}.2~").stat().st_mode & 0o777 == 0o600, "who could not read it still cannot"


def test_what_a_person_writes_while_setup_asks_is_not_written_over(tmp_path: Path) -> None:
    write(tmp_path, wanted())
    disk = Disk(tmp_path, FOLDER)
    changes = [each for each in disk.compare(wanted("[Unit]\nA=1\n")) if each.state is not State.SAME]
    (tmp_path / UNIT[1:]).write_text("mine\n")
    with pytest.raises(ConfigError, match=f"{UNIT} was changed a moment ago"):
        list(disk.write(changes, {}))
    assert (tmp_path / UNIT[1:]).read_text() == "mine\n"
    with pytest.raises(ConfigError, match="was changed a moment ago"):
        list(disk.remove([replace(each, wanted=None) for each in changes]))
    assert states(tmp_path, wanted())[UNIT] is State.CHANGED


def test_what_two_hubs_have_is_no_persons_and_goes_with_the_second_alone(tmp_path: Path) -> None:
    helper = File("/usr/local/libexec/carme-submit", "#!/bin/sh\n", "helper", 0o755)
    write(tmp_path, [*wanted(), helper])
    second = Disk(tmp_path, "/etc/hub2")
    assert second.shared[helper.path] == "carme-hub"
    own = File("/etc/hub2/x", "x\n", "own")
    changes = second.compare([own, helper])
    assert [each.state for each in changes] == [State.NEW, State.SAME]
    list(second.write(changes[:1], {}))
    second.keep(changes, {})

    second = Disk(tmp_path, "/etc/hub2")
    assert [each.path for each in second.removals()] == [own.path], "the first hub needs the helper"
    assert [each.path for each in second.compare([own])] == [own.path]
    newer = replace(helper, text="#!/bin/sh\nexit\n")
    assert second.compare([own, newer])[1].state is State.OURS, "a newer release's is for both"
    list(second.remove(second.removals()))
    first = Disk(tmp_path, FOLDER)
    assert helper.path in [each.path for each in first.removals()]


def test_a_file_that_was_there_before_setup_is_a_persons(tmp_path: Path) -> None:
    (tmp_path / "etc/sudoers.d").mkdir(parents=True)
    (tmp_path / RULES[1:]).write_text("other rules\n")
    assert states(tmp_path, wanted()) == {UNIT: State.NEW, RULES: State.CHANGED}


def test_a_file_that_a_person_has_removed_stays_away(tmp_path: Path) -> None:
    write(tmp_path, wanted())
    (tmp_path / UNIT[1:]).unlink()
    assert states(tmp_path, wanted())[UNIT] is State.CHANGED


def test_a_link_is_a_persons_and_is_not_followed(tmp_path: Path) -> None:
    write(tmp_path, wanted())
    target = tmp_path / "elsewhere"
    target.write_text("[Unit]\n")
    (tmp_path / UNIT[1:]).unlink()
    (tmp_path / UNIT[1:]).symlink_to(target)
    found = change(tmp_path, wanted("[Unit]\nA=1\n"), UNIT)
    assert found.state is State.CHANGED
    list(Disk(tmp_path, FOLDER).write([found], {}))
    assert target.read_text() == "[Unit]\n"
    assert not (tmp_path / UNIT[1:]).is_symlink()


def test_another_mode_alone_is_mended(tmp_path: Path) -> None:
    write(tmp_path, wanted())
    (tmp_path / RULES[1:]).chmod(0o644)
    found = change(tmp_path, wanted(), RULES)
    assert (found.state, found.diff) == (State.OURS, f"# {RULES}: mode 0644 becomes 0440")
    write(tmp_path, wanted())
    assert (tmp_path / RULES[1:]).stat().st_mode & 0o777 == 0o440


def test_what_is_not_wanted_any_more_goes_unless_a_person_has_changed_it(tmp_path: Path) -> None:
    write(tmp_path, wanted())
    assert states(tmp_path, wanted()[:1]) == {UNIT: State.SAME, RULES: State.LEFT}
    (tmp_path / RULES[1:]).write_text("mine\n")
    assert states(tmp_path, wanted()[:1])[RULES] is State.CHANGED


def test_an_interruption_between_two_files_is_no_persons_change(tmp_path: Path) -> None:
    write(tmp_path, wanted("[Unit]\nold\n"))
    disk = Disk(tmp_path, FOLDER)
    files = [File(UNIT, "[Unit]\nnew\n", "unit"), File(RULES, "x ALL=(%g) NOPASSWD: /bin/false\n", "rules", 0o440)]
    half = disk.write(disk.compare(files), {})
    next(half)  # the unit is written, the rules are not, and then the machine stops
    half.close()
    assert states(tmp_path, files) == {UNIT: State.SAME, RULES: State.OURS}


def test_what_a_person_has_does_not_become_ours_by_an_interruption(tmp_path: Path) -> None:
    write(tmp_path, wanted())
    (tmp_path / UNIT[1:]).write_text("mine\n")
    disk = Disk(tmp_path, FOLDER)
    changes = [change(tmp_path, wanted("[Unit]\nA=1\n"), RULES), change(tmp_path, wanted("[Unit]\nA=1\n"), UNIT)]
    half = disk.write(changes, {})
    next(half)  # the rules; and then the machine stops
    half.close()
    assert states(tmp_path, wanted("[Unit]\nA=1\n"))[UNIT] is State.CHANGED


def test_what_the_hub_has_not_read_is_remembered_until_it_has(tmp_path: Path) -> None:
    def disk() -> Disk:
        return Disk(tmp_path, FOLDER, guarded=True)

    list(disk().write(disk().compare(wanted()), {}))
    assert disk().record.pending == [], "a hub that starts for the first time reads all of it"
    list(disk().write(disk().compare(wanted("[Unit]\nA=1\n"))[:1], {}))
    assert disk().record.pending == [UNIT]
    found = disk()
    found.keep(found.compare(wanted("[Unit]\nA=1\n")), {})
    assert disk().record.pending == [UNIT], "as long as it was not started again"
    disk().settle()
    assert disk().record.pending == []


def test_files_that_sudo_runs_belong_to_root_also_where_their_text_is_right(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        return
    write(tmp_path, wanted())
    os.chown(tmp_path / UNIT[1:], 65534, 65534)
    assert states(tmp_path, wanted())[UNIT] is State.SAME, "elsewhere users have other numbers"
    disk = Disk(tmp_path, FOLDER, guarded=True)
    (found,) = [each for each in disk.compare(wanted()) if each.path == UNIT]
    assert (found.state, found.diff) == (State.OURS, f"# {UNIT}: owner nobody becomes root")
    list(disk.write([found], {}))
    assert (tmp_path / UNIT[1:]).stat().st_uid == 0


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_a_folder_in_which_others_could_exchange_a_file_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "etc/systemd"
    folder.mkdir(parents=True)
    os.chown(folder, -1, 65534 if os.geteuid() == 0 else -1)
    folder.chmod(mode)
    with pytest.raises(ConfigError, match=f"{folder} can be written by others than root.*chmod go-w {folder}"):
        Disk(tmp_path, FOLDER, guarded=True).compare(wanted())
    folder.chmod(0o755)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "etc/sudoers.d").symlink_to(tmp_path / "open")
    with pytest.raises(ConfigError, match="open can be written by others than root"):
        Disk(tmp_path, FOLDER, guarded=True).compare(wanted())
    assert not list((tmp_path / "open").iterdir())


def test_a_link_does_not_lead_out_of_the_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (root / "etc/systemd").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=f"leads out of {root}, to {tmp_path}/elsewhere"):
        write(root, wanted())
    assert not list((tmp_path / "elsewhere").iterdir())


def test_rules_that_sudo_does_not_take_are_not_written(tmp_path: Path) -> None:
    if not Path("/usr/sbin/visudo").exists():
        return
    files = [File(UNIT, "[Unit]\n", "unit"), File(RULES, "x ALL=(%g NOPASSWD: nonsense\n", "rules", 0o440)]
    with pytest.raises(ConfigError, match=f"visudo refuses {RULES}"):
        write(tmp_path, files)
    assert not (tmp_path / UNIT[1:]).exists(), "nothing was written"


def test_removing_takes_what_setup_wrote_and_leaves_the_rest(tmp_path: Path) -> None:
    write(tmp_path, wanted())
    own = tmp_path / "etc/carme-hub/site.py"
    own.write_text("mine\n")
    disk = Disk(tmp_path, FOLDER)
    assert sorted(disk.remove(disk.removals())) == [f"removed {RULES}", f"removed {UNIT}"]
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["site.py"]
    own.unlink()
    disk = Disk(tmp_path, FOLDER)
    assert disk.removals() == []
    assert list(disk.remove([])) == [f"removed {FOLDER}"]


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [
        ("{}", 0o600, "is not understood"),
        ("nonsense", 0o600, "is not understood"),
        (json.dumps({"version": 9, "answers": {}, "files": {}}), 0o600, "of another release"),
        (json.dumps({"version": 1, "answers": {}, "files": {}}), 0o644, "readable by you only"),
    ],
)
def test_a_record_that_others_can_have_written_is_not_believed(tmp_path: Path, text: str, mode: int, says: str) -> None:
    file = tmp_path / RECORD
    file.write_text(text)
    file.chmod(mode)
    with pytest.raises(ConfigError, match=says):
        Record.load(file)


def test_a_record_of_the_first_release_is_read(tmp_path: Path) -> None:
    file = tmp_path / RECORD
    file.write_text(json.dumps({"version": 1, "answers": {"group": "g"}, "files": {"/x": ["0"]}}))
    file.chmod(0o600)
    record = Record.load(file)
    assert (record.answers, record.files, record.pending, record.image) == ({"group": "g"}, {"/x": ["0"]}, [], {})
    assert record.ports()["hub_port"] == "8081"


def test_a_record_that_is_a_pipe_does_not_stop_setup_for_ever(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / RECORD, 0o600)
    with pytest.raises(ConfigError, match="must belong to you"):
        Record.load(tmp_path / RECORD)


def test_a_record_behind_a_link_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("{}")
    (tmp_path / RECORD).symlink_to(tmp_path / "other")
    with pytest.raises(ConfigError, match="cannot be read"):
        Record.load(tmp_path / RECORD)
