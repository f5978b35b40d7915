"""What is sent comes back the same, and what cannot be sent is named."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path

import pytest

from carme_hub.training.run import results
from carme_hub.training.run.failures import CannotRun
from carme_hub.training.run.private_files import write
from carme_hub.training.run.results import NoResult, Rejected


def test_functions_and_variables_go_there_and_back() -> None:
    factor = 3
    assert results.load(results.dump(lambda value: factor * value, "it"), "it")(2) == 6
    assert results.load_variables(results.dump_variables({"a": 1, "b": [2]})) == {"a": 1, "b": [2]}


def test_what_cannot_be_pickled_is_named() -> None:
    with pytest.raises(Rejected, match=r"The variable lock cannot be pickled: cannot pickle '_thread\.lock'"):
        results.dump_variables({"fine": 1, "lock": threading.Lock()})


def test_without_cloudpickle_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "find_spec", lambda name: None)
    with pytest.raises(Rejected, match=r"-m pip install cloudpickle$"):
        results.dump(1, "it")


def test_what_is_too_large_is_named_with_its_size() -> None:
    with pytest.raises(Rejected, match=r"The variable big has 2\.0 MiB; the limit is 1\.0 MiB\. Keep it in a file"):
        results.dump_variables({"big": bytes(2 << 20)}, 1 << 20)
    with pytest.raises(Rejected, match=r"together, b alone 6\d\d bytes; the limit is 1,000 bytes"):
        results.dump_variables({"a": bytes(500), "b": bytes(600)}, 1000)


def test_what_cannot_be_unpickled_is_named() -> None:
    with pytest.raises(Rejected, match="The function cannot be unpickled: ModuleNotFoundError: No module named 'nowh"):
        results.load(b"cnowhere\nfound\n.", "The function")
    with pytest.raises(Rejected, match="nowhere must be importable here too"):
        results.load(b"cnowhere\nfound\n.", "The function")


def test_a_result_is_of_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "result-0.pkl"
    with pytest.raises(NoResult, match="failed, or has not ended yet") as caught:
        results.read_result(path)
    assert isinstance(caught.value, CannotRun)
    write(path, pickle.dumps([1]))
    assert results.read_result(path) == [1]
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["result-0.pkl"]
    write(path, pickle.dumps(results.Pulled(results.dump_variables({"x": 2}))))
    assert results.read_result(path) == {"x": 2}
