"""A rank keeps to its own GPUs, finds the network to the others, and says what went wrong without our own frames."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from carme_hub.training.rank import network
from carme_hub.training.rank.libraries import torch_store
from carme_hub.training.rank.output import execute
from carme_hub.training.rank.program import RankConfig, describe_error
from carme_hub.training.run.messages import BEAT, HELLO, ConductorUnreachable, RendezvousClient, read_message
from carme_hub.training.run.rendezvous import Rendezvous


def test_a_rank_and_its_conductor_hear_each_other() -> None:
    with Rendezvous("127.0.0.1") as there:
        telling = RendezvousClient(there.address, there.port)
        assert telling.get(HELLO, 0) is None
        telling.put(HELLO, 0, {"node": "n1", "host": "10.0.0.7", "port": 4711})
        assert (
            telling.get(HELLO, 0) == read_message(there, HELLO, 0) == {"node": "n1", "host": "10.0.0.7", "port": 4711}
        )
        assert read_message(there, BEAT, 0) is None
        assert network.local_address(telling) == "127.0.0.1"
        assert network.interface_name(telling) == "lo"
        assert network.rank_zero_address(telling, 5) == ("10.0.0.7", 4711)
        there.clear()
        with pytest.raises(network.RankZeroMissing, match="did not come within 0 s"):
            network.rank_zero_address(telling, 0)
        stranger = RendezvousClient(there.address.replace(there.secret, "0" * 32), there.port)
        with pytest.raises(ConductorUnreachable, match="did not accept"):
            stranger.put(HELLO, 0, {})
    with pytest.raises(ConductorUnreachable, match="does not answer"):
        telling.get(HELLO, 0)


def test_a_traceback_begins_with_the_users_own_code(tmp_path: Path) -> None:
    (tmp_path / "cell.py").write_text("def inner():\n    raise ValueError('no')\ninner()\n")
    with pytest.raises(ValueError, match="no") as error:
        execute.run_file(tmp_path / "cell.py", {})
    trace = error.value.__traceback__
    assert trace is not None
    error.value.__traceback__ = trace.tb_next  # without the test's own
    found = describe_error(error.value)
    assert (found["type"], found["message"]) == ("ValueError", "no")
    assert found["traceback"].splitlines()[1] == f'  File "{tmp_path}/cell.py", line 3, in <module>'
    assert "rank.py" not in found["traceback"]


def test_a_status_is_an_error_too() -> None:
    assert describe_error(SystemExit(3)) == {
        "type": "SystemExit",
        "message": "the code ended with status 3",
        "traceback": "SystemExit: 3\n",
    }


def test_fields_that_a_rank_does_not_know_are_left_out(tmp_path: Path) -> None:
    said = dict.fromkeys(RankConfig.__slots__, "") | {"args": ["a"], "path": [], "pull": [], "newer": 1, "folder": "x"}
    (tmp_path / "run.json").write_text(json.dumps(said))
    assert (RankConfig.read(tmp_path).args, RankConfig.read(tmp_path).folder) == (("a",), tmp_path)


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages that have what of torch is touched here, to be imported."""
    (tmp_path / "torch/distributed").mkdir(parents=True)
    (tmp_path / "torch/__init__.py").touch()
    store = "class FileStore:\n    def __init__(self, path, size): self.path, self.size = path, size\n"
    store += "    def set_timeout(self, timeout): self.timeout = timeout\n"
    (tmp_path / "torch/distributed/__init__.py").write_text(store)
    (tmp_path / "torch/distributed/rendezvous.py").write_text("_rendezvous_handlers = {'env': None, 'tcp': 'stock'}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize("early", [False, True])
def test_torch_meets_in_a_file_whether_it_was_imported_before_or_not(tmp_path: Path, early: bool) -> None:
    def load() -> ModuleType:
        import torch.distributed.rendezvous

        return torch.distributed.rendezvous

    before, finders = load() if early else None, len(sys.meta_path)
    torch_store.install(tmp_path, "0")
    module = load()
    assert before in (None, module)
    assert len(sys.meta_path) == finders
    handlers = module._rendezvous_handlers
    assert handlers["tcp"] == "stock"
    for number in range(2):  # a world that is made anew has a file of its own
        meeting = handlers["env"]("env://", timeout=5, use_libuv=True)
        store, number_of_rank, size = next(meeting)
        assert (store.path, store.size, store.timeout) == (str(tmp_path / f"store-0-{number}"), 4, 5)
        assert (number_of_rank, size) == (1, 4)
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        del sys.modules[name]
