"""Slurm's reasons of nodes as words: ours and its own for everybody, an administrator's for administrators."""

from __future__ import annotations

import pytest

from carme_hub.domain.cluster.node_reasons import HEALTH, UPDATE, UPDATE_FAILED, bare_reason, full_reason, plain_reason
from carme_hub.node import health


@pytest.mark.parametrize(
    ("reason", "plain", "full"),
    [
        (f"{HEALTH}1 of 4 GPUs is lost", "1 of 4 GPUs is lost", "Health check: 1 of 4 GPUs is lost"),
        (f"{UPDATE}Kernel (ada)", "it is being updated", "Update: Kernel (ada)"),
        (f"{UPDATE_FAILED}Kernel: no", "its update failed", "Update failed: Kernel: no"),
        ("Not responding", "it does not answer Slurm", "It does not answer Slurm (Not responding)"),
        ("gres/gpu count reported lower than configured (2 < 4)", "it has fewer GPUs than slurm.conf says", None),
        ("Bob broke a fan (ada)", "", "Bob broke a fan (ada)"),
        ("", "", ""),
    ],
)
def test_a_reason_is_told_in_words(reason: str, plain: str, full: str | None) -> None:
    assert plain_reason(reason) == plain
    assert full is None or full_reason(reason) == full


def test_who_set_it_and_when_is_no_part_of_it() -> None:
    assert bare_reason("A fan fails (ada) [slurm@2026-11-21T03:02:16]") == "A fan fails (ada)"
    assert bare_reason("list [1-4] of nodes [root@1795228267]") == "list [1-4] of nodes"


def test_the_program_on_the_nodes_has_the_same_prefix() -> None:
    assert health.PREFIX == HEALTH
