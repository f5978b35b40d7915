"""The doctor on scratch folders: what Slurm must call, how long it may take, and the programs of nodes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from traitlets.config import Config

from carme_hub.cli.doctor.findings import Level
from carme_hub.cli.doctor.staging import check, check_machine
from carme_hub.spawners.staging.programs import write_programs

RCLONE = "/bin/sh"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return write_programs(tmp_path / "node")


def found(node: Path | None, root: str = "/scratch", rclone: str = RCLONE, **slurm: str) -> dict[str, Level]:
    config = Config()
    config.CarmeStaging.root, config.CarmeStaging.rclone = root, rclone
    lines = {"Prolog": f"{node}/carme-stage-prolog", "Epilog": f"{node}/carme-stage-epilog"} if node else {}
    lines |= {"SlurmdUser": "root(0)", "PrologEpilogTimeout": "65534"}
    return {
        each.setting: each.level
        for each in (*check_machine(config), *check(config, {**lines, **slurm}))
        if os.geteuid() == 0 or "node" not in each.setting
    }


def test_site_whose_slurm_calls_the_programs_of_this_release_has_nothing_to_mend(node: Path) -> None:
    assert found(node) == {}


def test_site_without_scratch_folders_needs_none_of_it() -> None:
    assert found(None, root="") == {}


def test_prolog_and_epilog_that_are_missing_are_named() -> None:
    assert found(None) == {"Prolog": Level.UNSAFE, "Epilog": Level.UNSAFE}


def test_own_prolog_is_read_and_one_that_is_not_here_is_unknown(node: Path, tmp_path: Path) -> None:
    own = tmp_path / "prolog"
    own.write_text("#!/bin/sh\nmkdir /dev/shm/job\n")
    assert found(node, Prolog=str(own)) == {"Prolog": Level.UNSAFE}
    own.write_text(f"#!/bin/sh\n{node}/carme-stage-out prolog\n")
    assert found(node, Prolog=str(own)) == {}
    assert found(node, Epilog="/only/on/nodes/epilog.sh") == {"Epilog": Level.UNKNOWN}


def test_several_prologs_and_a_pattern_are_understood(node: Path, tmp_path: Path) -> None:
    assert found(node, Prolog=f"{node}/carme-*-prolog") == {}
    assert found(node, Prolog="/only/on/nodes/carme-*-prolog") == {}, "it is a pattern of ours"
    listed = {"Prolog[0]": "/etc/slurm/prolog.sh", "Prolog[1]": f"{node}/carme-stage-prolog"}
    assert found(node, Prolog="(null)", **listed) == {}
    (tmp_path / "own").write_text("#!/bin/sh\n")
    assert found(node, Prolog=f"{tmp_path}/ow*") == {"Prolog": Level.UNSAFE}
    assert found(node, Prolog="/only/on/nodes/*") == {"Prolog": Level.UNKNOWN}


@pytest.mark.parametrize(("seconds", "named"), [("600", True), ("900 sec", True), ("1200", False), ("0", False)])
def test_epilog_that_slurm_ends_too_early_is_named(node: Path, seconds: str, named: bool) -> None:
    assert found(node, PrologEpilogTimeout=seconds) == ({"PrologEpilogTimeout": Level.UNSAFE} if named else {})


def test_settings_of_nodes_that_differ_from_the_hubs_are_named(node: Path) -> None:
    (node.parent / "etc").mkdir()
    settings = node.parent / "etc" / "carme-stage-out.json"
    settings.write_text(json.dumps({"root": "/local", "epilog_seconds": 100}))
    assert found(node, PrologEpilogTimeout="200") == {"CarmeStaging.root": Level.UNSAFE}
    assert found(node, root="/local", PrologEpilogTimeout="100") == {"PrologEpilogTimeout": Level.UNSAFE}


def test_daemon_that_is_not_roots_and_rclone_that_is_not_there_are_named(node: Path) -> None:
    wanted = {"SlurmdUser": Level.UNSAFE, "CarmeStaging.rclone": Level.ADVICE}
    assert found(node, rclone="/not/there", SlurmdUser="slurm(64030)") == wanted


def test_programs_of_another_release_and_those_that_others_can_write_are_named(node: Path) -> None:
    (node / "carme-stage").write_text("old")
    assert {**found(node), str(node): Level.ADVICE} == {str(node): Level.ADVICE}
    (node / "carme-stage-files").chmod(0o757)
    if os.geteuid() == 0:
        assert found(node)[str(node / "carme-stage-files")] is Level.UNSAFE
