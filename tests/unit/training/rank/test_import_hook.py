"""What is done around the import of another's module: only there, once, and with the error that people can use."""

from __future__ import annotations

import builtins
import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from carme_hub.training.rank import garbage
from carme_hub.training.rank.import_hook import after_import
from carme_hub.training.rank.libraries import horovod, mpi
from carme_hub.training.rank.libraries.mpi import NoMPI, WrongWorld

#: As mpi4py's, of one process that nobody told its place.
SINGLETON = """
class COMM_WORLD:
    Get_size = staticmethod(lambda: 1)
Is_initialized, Is_finalized = (lambda: True), (lambda: False)
"""
WORKER = """
class WorkerNotificationManager:
    def __init__(self): self._service = None
    def init(self, rendezvous_addr=None, nic=None): self._service = object()
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of modules, which are forgotten afterwards, as everything that looks for them."""
    monkeypatch.syspath_prepend(tmp_path)
    before, finders = set(sys.modules), list(sys.meta_path)
    yield tmp_path
    sys.meta_path[:] = finders
    for name in set(sys.modules) - before:
        del sys.modules[name]


def put(folder: Path, name: str, text: str) -> None:
    """Write a module, with the packages above it."""
    *above, last = name.split(".")
    for each in above:
        folder = folder / each
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").touch()
    (folder / f"{last}.py").write_text(text)
    importlib.invalidate_caches()


def test_two_hooks_for_one_module_are_both_called(modules: Path) -> None:
    called: list[str] = []
    after_import("looked_at", lambda _: called.append("first"))
    after_import("looked_at", lambda _: called.append("second"))
    put(modules, "looked_at", "VALUE = 1\n")
    assert importlib.import_module("looked_at").VALUE == 1
    assert called == ["first", "second"]


def test_a_module_is_looked_at_once_after_it_has_been_executed(modules: Path) -> None:
    seen: list[ModuleType] = []
    after_import("looked_at", seen.append)
    put(modules, "looked_at", "VALUE = 1\n")
    put(modules, "another", "")
    importlib.import_module("another")
    assert seen == []
    found = importlib.import_module("looked_at")
    importlib.import_module("looked_at")
    assert seen == [found]
    assert found.VALUE == 1
    assert found.__spec__ is not None
    assert found.__spec__.origin == str(modules / "looked_at.py")
    after_import("is_not_there", seen.append)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("is_not_there")


def test_horovods_ranks_start_no_service(modules: Path) -> None:
    horovod.install()
    put(modules, "horovod.runner.elastic.worker", WORKER)
    manager = importlib.import_module("horovod.runner.elastic.worker").WorkerNotificationManager()
    manager.init("10.0.0.1", nic="eth0")
    assert manager._service is None


def test_an_mpi_that_sees_fewer_ranks_than_there_are_is_refused_at_its_import(modules: Path) -> None:
    reports: list[bool] = []
    put(modules, "mpi4py.MPI", SINGLETON)
    mpi.install(4, reports.append, {"PMIX_RANK": "2"})
    with pytest.raises(WrongWorld, match="MPI sees 1 rank where Slurm started 4"):
        importlib.import_module("mpi4py.MPI")
    assert reports == [False]  # the conductor knows that it has not started


def test_one_that_begins_later_is_refused_at_the_end(modules: Path) -> None:
    reports: list[bool] = []
    put(modules, "mpi4py.MPI", SINGLETON.replace("(lambda: True)", "(lambda: BEGUN)") + "BEGUN = False\n")
    mpi.install(4, reports.append, {"PMIX_RANK": "2"})
    found = importlib.import_module("mpi4py.MPI")
    assert reports == [False, True]
    mpi.check(4)
    found.BEGUN = True
    with pytest.raises(WrongWorld):
        mpi.check(4)
    mpi.check(1)


def test_mpi4py_without_a_library_says_what_to_install(modules: Path) -> None:
    reports: list[bool] = []
    put(modules, "mpi4py.MPI", "raise RuntimeError('cannot load MPI library\\nlibmpi.so.40: cannot open')")
    mpi.install(2, reports.append, {"PMIX_RANK": "0"})
    with pytest.raises(NoMPI, match=r"in this image \(libmpi.so.40: cannot open\)\. Use the image “training”"):
        importlib.import_module("mpi4py.MPI")


def test_a_rank_that_slurm_told_nothing_is_refused_before_its_code_runs() -> None:
    with pytest.raises(NoMPI, match="PMIX_RANK is not in its environment"):
        mpi.install(2, print, {"SLURM_PROCID": "0"})
    mpi.check(2, SimpleNamespace(Is_initialized=lambda: True, Is_finalized=lambda: True))


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("end", ["", "raise ImportError('broken')"])
def test_the_collector_rests_while_torch_is_imported_and_is_then_as_it_was(modules: Path, on: bool, end: str) -> None:
    garbage.install()
    put(modules, "torch", f"import gc, builtins\nbuiltins.collector_was_on = gc.isenabled()\n{end}\n")
    (gc.enable if on else gc.disable)()
    try:
        with nullcontext() if not end else pytest.raises(ImportError, match="broken"):
            importlib.import_module("torch")
        assert gc.isenabled() is on
        assert vars(builtins).pop("collector_was_on") is False
    finally:
        gc.enable()
