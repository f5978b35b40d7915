"""carme-stage between folders of a node: what is copied, skipped, resumed and said."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rig.staging import StagedNode, sums

from carme_hub.node.staging import files, journal, report


@pytest.fixture
def node() -> Iterator[StagedNode]:
    with tempfile.TemporaryDirectory(prefix="carme-stage-") as folder:
        Path(folder).chmod(0o755)
        yield StagedNode(Path(folder).resolve())


def test_input_is_in_scratch_with_its_modes_times_links_and_odd_names(node: StagedNode) -> None:
    source = node.base / "source"
    for name in ("a.bin", "sub/b c.txt", "sub/new\nline", "sub/dash -> arrow", "-rf"):
        node.write(source / name, name.encode())
    (source / "a.bin").chmod(0o754)
    os.utime(source / "a.bin", ns=(0, 1_500_000_000_000_000_001))
    (source / "link").symlink_to("a.bin")
    (source / "nowhere").symlink_to("/does/not/exist")
    (source / "empty").mkdir()
    os.mkfifo(source / "pipe")
    node.begin(in_=[{"source": str(source), "target": "data"}])
    assert node.move("in").returncode == 0
    assert sums(node.data / "data") == sums(source)
    assert len(sums(source)) == 7
    copied = (node.data / "data" / "a.bin").stat()
    assert (copied.st_mode & 0o777, copied.st_mtime_ns) == (0o754, 1_500_000_000_000_000_001)
    assert (node.data / "data" / "empty").is_dir()
    assert not (node.data / "data" / "pipe").exists()
    found = node.progress()
    assert (found["state"], found["files"], found["bytes"]) == ("done", 5, found["total"])


def test_missing_input_is_named_with_the_reason(node: StagedNode) -> None:
    node.begin(in_=[{"source": str(node.base / "not-there"), "target": "data"}])
    assert node.move("in").returncode == 1
    error = node.progress()["errors"][0]
    assert error["file"].endswith("not-there")
    assert "nothing under this name" in error["why"]


def test_one_file_that_cannot_be_read_is_named_and_the_others_are_copied(node: StagedNode) -> None:
    source = node.base / "source"
    node.write(source / "good", b"1")
    (source / "bad").mkdir()
    node.begin(in_=[{"source": str(source), "target": "data"}])
    node.write(node.data / "data" / "bad", b"in the way")  # a file where a folder is to be
    assert node.move("in").returncode == 1
    assert node.progress()["errors"]


def test_second_pass_copies_only_what_has_changed(node: StagedNode) -> None:
    node.begin(out=[{"source": "run", "target": f"{node.target}/run"}])
    node.write(node.data / "run" / "a", b"one")
    node.write(node.data / "run" / "b", b"two")
    assert node.move("final").returncode == 0
    before = {name: (node.target / "run" / name).stat().st_ino for name in "ab"}
    node.write(node.data / "run" / "b", b"three")
    assert node.move("final").returncode == 0
    after = {name: (node.target / "run" / name).stat().st_ino for name in "ab"}
    assert after["a"] == before["a"]
    assert after["b"] != before["b"]
    assert (node.target / "run" / "b").read_bytes() == b"three"


def test_interrupted_copy_goes_on_where_it_was_and_notices_a_source_that_is_another_now(node: StagedNode) -> None:
    content = os.urandom(5 << 20)
    node.begin(out=[{"source": "big", "target": f"{node.target}/big"}])
    node.write(node.data / "big", content)
    for step in range(1, 30):
        node.move("final", strike=f"root:{step}")
        if (parts := list(node.target.glob(".carme-*.part"))) and parts[0].stat().st_size > 1 << 20:
            break
    part = parts[0]
    assert 0 < part.stat().st_size < len(content)
    assert not (node.target / "big").exists()
    inode = part.stat().st_ino
    changed = content[:1000] + b"X" + content[1001:]
    node.write(node.data / "big", changed)
    assert node.move("final").returncode == 0
    assert (node.target / "big").read_bytes() == changed
    assert (node.target / "big").stat().st_ino == inode


def test_late_pass_does_not_overwrite_what_is_newer_at_the_target(node: StagedNode) -> None:
    node.begin(out=[{"source": "model", "target": f"{node.target}/model"}])
    node.write(node.data / "model", b"of the job that ended")
    node.write(node.target / "model", b"of a newer job")
    later = time.time() + 100
    os.utime(node.target / "model", (later, later))
    assert node.move("late").returncode == 1
    assert (node.target / "model").read_bytes() == b"of a newer job"
    assert "newer" in node.progress()["errors"][0]["why"]


def test_pass_before_the_end_leaves_files_that_are_being_written(node: StagedNode) -> None:
    node.begin(out=[{"source": "run", "target": f"{node.target}/run"}])
    node.write(node.data / "run" / "old", b"at rest")
    os.utime(node.data / "run" / "old", (1, 1))
    node.write(node.data / "run" / "new", b"half of")
    assert node.move("out").returncode == 0
    assert list(sums(node.target / "run")) == ["old"]
    assert node.move("final").returncode == 0
    assert list(sums(node.target / "run")) == ["new", "old"]


def test_watch_begins_early_enough_before_the_time_limit_and_not_before(node: StagedNode) -> None:
    node.begin(out=[{"source": "run", "target": f"{node.target}/run"}], look=0.2)
    node.write(node.data / "run" / "old", b"at rest")
    os.utime(node.data / "run" / "old", (1, 1))
    for ends, expected in ((time.time() + 3600, []), (time.time() + 20, ["old"])):
        plan = json.loads((node.stage / "plan.json").read_text())
        node.plan({**plan, "ends": ends})
        argv = ["/usr/bin/python3", "-IS", str(node.program.with_name("carme-stage")), str(node.stage), "watch"]
        more: dict[str, Any] = {} if os.geteuid() else {"user": node.uid, "group": node.gid, "extra_groups": []}
        process = subprocess.Popen(argv, cwd="/", **more)
        try:
            deadline = time.monotonic() + (0.8 if not expected else 20)
            while time.monotonic() < deadline and list(sums(node.target)) != [
                f"run/{name}" for name in expected or "-"
            ]:
                time.sleep(0.05)
        finally:
            process.kill()
            process.wait()
        assert list(sums(node.target)) == [f"run/{name}" for name in expected]


def test_scratch_name_that_leads_out_of_scratch_is_not_read(node: StagedNode) -> None:
    node.begin(out=[{"source": "../stage/plan.json", "target": f"{node.target}/plan"}])
    assert node.move("final").returncode == 1
    assert not sums(node.target)


def test_file_that_somebody_else_has_put_under_the_temporary_name_is_neither_written_nor_kept(node: StagedNode) -> None:
    """In a folder that several people write; the name depends on the session and the file, which both are known."""
    node.begin(out=[{"source": "model", "target": f"{node.target}/model"}])
    node.write(node.data / "model", b"weights")
    part, mine = Path(files.temporary(str(node.target / "model"), node.session[:8])), node.home / "mine"
    node.write(mine, b"precious")
    for make in (lambda: part.hardlink_to(mine), lambda: part.symlink_to(mine), lambda: os.mkfifo(part)):
        make()
        assert node.move("final").returncode == 0, node.progress()
        assert (node.target / "model").read_bytes() == b"weights"
        assert mine.read_bytes() == b"precious"
        (node.target / "model").unlink()
    part.write_bytes(b"weig")
    part.chmod(0o666)  # root's here, and all can read it
    with part.open("rb") as watcher:
        assert node.move("final").returncode == 0, node.progress()
        assert watcher.read() == (b"weights" if os.geteuid() else b"weig")
    assert (node.target / "model").read_bytes() == b"weights"


def test_full_disk_of_the_node_keeps_no_result_from_its_target(tmp_path: Path) -> None:
    """The journal is on it: a later pass only copies again what it does not have."""
    (tmp_path / "run").mkdir()
    for name in "ab":
        (tmp_path / "run" / name).write_text(name)
    failed: list[tuple[str, str]] = []
    done = journal.Journal(str(tmp_path / "journal"))
    done.file.close()
    done.file = open("/dev/full", "a", buffering=1)  # noqa: SIM115, PTH123  the journal closes it
    told = (lambda *_: None, lambda name, why: failed.append((name, why)), lambda: False)
    files.Copy(str(tmp_path / "run"), str(tmp_path / "there"), done, "tag", *told).run(2)
    done.close()
    assert failed == []
    assert list(sums(tmp_path / "there")) == ["a", "b"]


class JournalThatFails(journal.Journal):
    """Fails for one file in a way that nobody has thought of."""

    def add(self, target: str, found: os.stat_result, digest: str) -> None:
        """Fail for ``b``."""
        if target.endswith("b"):
            raise RuntimeError("not thought of")
        super().add(target, found, digest)


def test_error_that_nobody_has_thought_of_is_no_success(tmp_path: Path) -> None:
    """Otherwise the Epilog would remove a file that is not at its target."""
    (tmp_path / "run").mkdir()
    for name in "abc":
        (tmp_path / "run" / name).write_text(name)
    failed: list[tuple[str, str]] = []
    told = (lambda *_: None, lambda name, why: failed.append((name, why)), lambda: False)
    done = JournalThatFails(str(tmp_path / "journal"))
    files.Copy(str(tmp_path / "run"), str(tmp_path / "there"), done, "tag", *told).run(1)
    done.close()
    assert failed == [(f"{tmp_path}/run/b", "RuntimeError: not thought of")]
    assert list(sums(tmp_path / "there")) == ["a", "b", "c"], "the others are copied"


def test_reasons_that_the_hub_does_not_take_are_left_out_of_the_report() -> None:
    errors = [{"file": "é" * 500, "why": "😀" * 500} for _ in range(20)]
    body = report.report_body({"state": "kept", "errors": errors})
    assert len(body) < 64 << 10
    assert 10 < len(json.loads(body)["errors"]) < 20
