"""Sandboxes that come up at the same moment get ports of their own, and the same ones every time."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from carme_hub.errors import SandboxError
from carme_hub.sandbox.slurm import ports
from carme_hub.sandbox.slurm.ports import DEFAULT_PORTS, Ports, free_block, hub_ports


def test_two_folders_get_two_blocks_before_either_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "is_free", lambda _port: True)
    folders = [Path(f"/var/lib/carme-hub-test-{number}") for number in range(1, 10)]
    blocks = [free_block(folder, 4) for folder in folders]
    assert len({block.controller for block in blocks}) == len(folders)
    assert free_block(folders[0], 4) == blocks[0]


def test_a_block_has_room_for_every_port_and_no_more() -> None:
    every = Ports.block(12000).all(64)
    assert len(set(every)) == len(every) == 3 + 7 + 64
    assert min(every) == 12000
    assert max(every) < 12100


def test_a_block_with_a_taken_port_is_passed_by() -> None:
    folder = Path("/var/lib/carme-hub-test-x")
    first = free_block(folder, 4)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first.hub["proxy_api"]))
        taken.listen()
        assert free_block(folder, 4) != first


def test_who_finds_a_block_taken_does_not_go_to_that_of_a_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [Path(f"/var/lib/carme-hub-test-{number}") for number in range(1, 10)]
    own = [free_block(folder, 4) for folder in folders]
    stray = {block.hub["reservations"] for block in own[1:4]}
    monkeypatch.setattr(ports, "is_free", lambda port: port not in stray)
    blocks = [free_block(folder, 4) for folder in folders]
    assert len({block.controller for block in blocks}) == len(folders)


def test_only_the_main_sandbox_takes_the_usual_ports_of_a_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    block = Ports.block(12000)
    monkeypatch.setattr(ports, "is_free", lambda _port: True)
    assert hub_ports(block, usual=True) == DEFAULT_PORTS
    assert hub_ports(block, usual=False) == block.hub
    monkeypatch.setattr(ports, "is_free", lambda port: port != DEFAULT_PORTS["hub"])
    assert hub_ports(block, usual=True) == block.hub


def test_no_free_block_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "is_free", lambda _port: False)
    with pytest.raises(SandboxError, match="12000 and 30000"):
        free_block(Path("/var/lib/x"), 4)
