"""The trial of a training: a loop over its steps that measures the time::

    def train(trial):
        plain = Net()                                    # trained alone
        model = DistributedDataParallel(copy.deepcopy(plain))
        for step in trial:
            with step.loading():
                x, y = next(data)                        # trial.batch samples
            ...                                          # one step: of ``plain`` where step.alone, else of ``model``

Steps come in blocks, alternately together and alone, so that both kinds see the same node at nearly the same time. All
ranks start a block at one moment, and the time is taken after the GPU has finished its work.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from carme_hub.training.rank.progress import PROGRESS

from .curve import Block, RankMeasurement, share_of

#: Name of the barrier: Horovod matches operations without a name by counting them.
BARRIER_NAME = "carme.scaling.border"

NO_SYNC_MESSAGE = (
    "step.quiet works with DDP models, and {} has no no_sync(). Train a second, plain model where step.alone is true: "
    "with FSDP's fully_shard this is the only way, since it fetches parameters in every step."
)


class NotMeasured(RuntimeError):
    """The training did not do the steps of its trial; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a run's measurement. ``blocks``: of each kind, with ``steps`` each; ``warmup``: uncounted steps.

    A ``profiled`` run has one block of steps together, which it reports to torch's profiler instead of timing them.
    """

    batches: tuple[int, ...]
    mode: str = "weak"
    steps: int = 10
    blocks: int = 5
    warmup: int = 3
    repeat: int = 0
    profiled: bool = False


class Step:
    """One step of a trial."""

    __slots__ = ("_trial",)

    def __init__(self, trial: Trial) -> None:
        self._trial = trial

    @property
    def alone(self) -> bool:
        """Return whether this step must be done without communication."""
        self._trial.can_be_alone = True
        return self._trial.now_alone

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """Count the time of the block as waiting for data."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._trial.loaded += time.perf_counter() - began

    @contextlib.contextmanager
    def quiet(self, model: Any) -> Iterator[None]:
        """Keep a DDP model from exchanging gradients in the block, where the step is alone.

        FSDP's ``FullyShardedDataParallel`` is accepted too, but still fetches its parameters.

        Raises:
            NotMeasured: the model has no ``no_sync``, such as the result of ``fully_shard``.
        """
        quiet = getattr(model, "no_sync", None)
        # fully_shard's set_requires_gradient_sync(False) does not help: parameters are still fetched, and gradients are
        # kept where zero_grad does not reach them.
        if quiet is None and (self._trial.size > 1 or hasattr(model, "set_requires_gradient_sync")):
            raise NotMeasured(NO_SYNC_MESSAGE.format(type(model).__name__))
        with quiet() if self.alone and quiet is not None else contextlib.nullcontext():
            yield


class Trial:
    """One batch size in one run, on one rank; iterate over it to get its steps.

    Attributes:
        batch: samples of this rank in a step; total: of all ranks. rank, size: as in ``here``.
        epoch: samples of an epoch; the training may set it, for the cost of an epoch. device: "cuda:0" or "cpu".
    """

    def __init__(self, plan: Plan, batch: int, rank: int = 0, size: int = 1, *, device: str = "cpu") -> None:
        self.batch = share_of(batch, plan.mode, rank, size)
        self.total = batch if plan.mode == "strong" else batch * size
        self.rank, self.size, self.device = rank, size, device
        self.epoch = 0
        self.now_alone = False
        self.can_be_alone = False
        self.loaded = 0.0
        self.done = False
        self.blocks: dict[bool, list[Block]] = {False: [], True: []}
        self._plan = plan

    def __iter__(self) -> Iterator[Step]:
        """Yield all steps; the first ones are not counted."""
        step = Step(self)
        if self._plan.profiled:
            for number in range(1, self._plan.warmup + self._plan.steps + 1):
                yield step
                PROGRESS.step(number, None, self.batch, {}, by_code=False)
            self.done = True
            return
        for alone in (False, True):
            self.now_alone = alone
            for _ in range(self._plan.warmup):
                yield step
        for number in range(self._plan.blocks):
            for alone in (
                (False, True) if number % 2 == 0 else (True, False)
            ):  # so that a slow change of the node favours neither kind
                self.now_alone = alone
                barrier()
                self.loaded, began = 0.0, time.perf_counter()
                for _ in range(self._plan.steps):
                    yield step
                synchronize()
                took = time.perf_counter() - began
                self.blocks[alone].append(Block(took, self.loaded, self._plan.steps * self.batch))
        self.done = True

    def part(self, node: str) -> RankMeasurement:
        """Return the measurements of this rank.

        Raises:
            NotMeasured: the training ended before the last step.
        """
        if not self.done:
            raise NotMeasured("The training ended before its trial. Do one step for each step of `for step in trial`.")
        alone = self.blocks[True] if self.can_be_alone else []
        return RankMeasurement(self.rank, node, tuple(self.blocks[False]), tuple(alone))


def measure(train: Callable[[Trial], object], plan: Plan) -> dict[str, Any]:
    """Call a training for each batch size in this rank, and return its measurements as JSON values.

    Raises:
        NotMeasured: it did not do its steps.
    """
    from carme_hub.training import here

    device = str(here.device())
    parts, epoch = [], 0
    for batch in plan.batches:
        trial = Trial(plan, batch, here.rank, here.size, device=device)
        train(trial)
        parts.append({"batch": batch, **asdict(trial.part(here.node))})
        epoch = trial.epoch or epoch
    return {
        "parts": parts,
        "epoch": epoch,
        "device": "gpu" if device.startswith("cuda") else "cpu",
        "gpu": _gpu(device),
    }


def measure_script(path: str, name: str, args: Sequence[str], plan: Plan) -> dict[str, Any]:
    """Call the function of a script; errors as ``measure``."""
    import runpy

    sys.argv = [path, *args]
    sys.path.insert(0, str(Path(path).parent))  # as Python does for a script
    found = runpy.run_path(path, run_name="carme_scaling").get(name)
    if not callable(found):
        raise NotMeasured(f"{path} has no function {name}(trial). Write one, or name another: --function NAME.")
    return measure(found, plan)


def barrier() -> None:
    """Wait for all ranks, by the library that the training uses."""
    synchronize()
    torch, horovod, mpi = (sys.modules.get(name) for name in ("torch", "horovod.torch", "mpi4py.MPI"))
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()
    elif torch is not None and horovod is not None and horovod.is_initialized():
        horovod.allreduce(torch.zeros(1), name=BARRIER_NAME)
    elif mpi is not None and mpi.Is_initialized():
        mpi.COMM_WORLD.Barrier()


def synchronize() -> None:
    """Wait until the GPU has finished its work."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _gpu(device: str) -> str:
    torch = sys.modules.get("torch")
    return str(torch.cuda.get_device_name()) if torch is not None and device.startswith("cuda") else ""
