"""The GPUs of a rank.

With a fixed number of ranks of one GPU each, all ranks of a node see all GPUs of the step there, as with torchrun: code
selects its own by ``LOCAL_RANK``. Code that selects none gets its own as torch's current device. Ranks with several
GPUs, and workers of an elastic run, each of which is number 0 on its node, see only their own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import MutableMapping
from types import ModuleType

from .import_hook import after_import

#: The rank's own GPUs, as numbers among those in CUDA_VISIBLE_DEVICES: ``2,3``.
VARIABLE = "CARME_DEVICES"


class NoGPU(RuntimeError):
    """The job gave this rank fewer GPUs than it needs."""


def select_gpus(local: int, count: int, environ: MutableMapping[str, str] = os.environ) -> None:
    """Select this rank's GPUs among those of the step on this node: the ``local``-th ``count`` of them.

    Raises:
        NoGPU: there are fewer.
    """
    if not count:
        return
    if count > 1:  # torchrun knows no such ranks: LOCAL_RANK cannot be the number of all their GPUs
        return take_gpus(local, count, environ)
    _own(local, count, environ)
    own = range(local * count, (local + 1) * count)
    environ[VARIABLE] = environ["JAX_LOCAL_DEVICE_IDS"] = ",".join(map(str, own))
    after_import("torch.cuda", _use_by_default)


def take_gpus(local: int, count: int, environ: MutableMapping[str, str] = os.environ) -> None:
    """Select this rank's GPUs in the same way, and hide all others.

    Raises:
        NoGPU: there are fewer.
    """
    if not count:
        return
    environ["CUDA_VISIBLE_DEVICES"] = ",".join(_own(local, count, environ))
    environ[VARIABLE] = ",".join(map(str, range(count)))


def own_devices(environ: MutableMapping[str, str] = os.environ) -> list[int]:
    """Return the numbers of this rank's GPUs, as torch counts them; [] = it has none of its own."""
    return [int(number) for number in environ.get(VARIABLE, "").split(",") if number.isdigit()]


def own_names(environ: MutableMapping[str, str] = os.environ) -> list[str]:
    """Return the names of this rank's GPUs in CUDA_VISIBLE_DEVICES; of all of them where it has none of its own."""
    names = [each for each in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
    return [names[number] for number in own_devices(environ) if number < len(names)] or names


def _own(local: int, count: int, environ: MutableMapping[str, str]) -> list[str]:
    found = [each for each in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
    mine = found[local * count : (local + 1) * count]
    if len(mine) < count:
        raise NoGPU(
            f"This rank should have {count} GPUs, as number {local} of its node, but the step has {len(found)} there. "
            "Use fewer ranks, or --gpus-per-task 0."
        )
    return mine


def _use_by_default(module: ModuleType) -> None:
    """Make the first own GPU torch's current device when CUDA is initialized; torch has no setting for it."""

    def select() -> None:
        with contextlib.suppress(RuntimeError):  # the code has selected what it sees in another way
            module.set_device(own_devices()[0])

    with contextlib.suppress(AttributeError):  # another release of torch
        module._lazy_call(select)
