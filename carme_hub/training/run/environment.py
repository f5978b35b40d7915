"""The variables of a notebook or terminal that go along to the ranks of a run.

Ranks start with the environment of the session, as its container began. What the kernel or the shell has set since
then goes along, in a file of the run that only the user can read (``environ.json``), and never in a command line. Left
out is what would steer Slurm, MPI or the loader in another container, what each rank has a value of its own for, and
what describes only the terminal or the kernel.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

#: Of a run that was submitted, until its batch job begins: an earlier release deletes the other one before.
SUBMITTED_FILE = "submitted-environ.json"
FILE = "environ.json"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: What never goes along, and why; each is a whole name.
REFUSED = (
    (
        re.compile(r"LD_\w*|GCONV_PATH|GLIBC_TUNABLES|PYTHONHOME|BASH_ENV|ENV|IFS"),
        "it changes how programs are loaded",
    ),
    (re.compile(r"(SLURM|SBATCH|SRUN|SALLOC|PMI|OMPI_COMM_WORLD)\w*"), "it belongs to Slurm and MPI"),
    (re.compile(r"(JUPYTERHUB|JPY|CARME)_\w*"), "it belongs to the session"),
    (
        re.compile(
            r"RANK|WORLD_SIZE|NODE_RANK|(LOCAL|GROUP|ROLE)_(RANK|NAME|WORLD_SIZE)|MASTER_(ADDR|PORT)|TORCHELASTIC_\w*|"
            r"HOROVOD_(RANK|SIZE|HOSTNAME|CONTROLLER|CPU_OPERATIONS|(LOCAL|CROSS)_(RANK|SIZE)|GLOO_\w*)|"
            r"JAX_COORDINATOR_\w*|GLOO_SOCKET_IFNAME|(CUDA|NVIDIA|ROCR|HIP)_VISIBLE_DEVICES|JAX_LOCAL_DEVICE_IDS|GPU_DEVICE_ORDINAL|"
            r"ZE_AFFINITY_MASK"
        ),
        "each rank has its own",
    ),
)
#: What does not go along unless ``--env`` names it: it describes the terminal, the kernel or the user.
_OF_THE_TERMINAL = re.compile(
    r"HOME|USER|LOGNAME|MAIL|SHELL|PWD|OLDPWD|SHLVL|_|TERM(_\w*)?|COLORTERM|COLUMNS|LINES|PS\d|PROMPT\w*|HOSTNAME|"
    r"CLICOLOR(_FORCE)?|FORCE_COLOR|PAGER|GIT_PAGER|LS_COLORS|LESS\w*|SSH_\w*|DISPLAY|XDG_\w*|DBUS_\w*|JUPYTER\w*|"
    r"KERNEL_\w*|PYDEVD_\w*|VSCODE_\w*|WANDB_SERVICE"
)
#: Variables that programs read only at their start; a rank starts its interpreter again for them.
READ_AT_START = ("GLIBC_", "LANG", "LC_", "MALLOC_", "PYTHON", "TZ")


@dataclass(frozen=True, slots=True)
class Forwarded:
    """Variables for the ranks.

    Attributes:
        values: by name. left_out: names that were set and do not go along.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    def names(self) -> dict[str, list[str]]:
        """Return the names, without values, for the state of the run."""
        return {"forwarded": sorted(self.values), "left_out": sorted(self.left_out)}


def refusal(name: str) -> str:
    """Return why a variable can never go along, or ""."""
    return next((why for pattern, why in REFUSED if pattern.fullmatch(name)), "")


def split_assignment(word: str) -> tuple[str, str | None]:
    """Return name and value of ``NAME=VALUE``; the value is None for ``NAME``.

    Raises:
        ValueError: the name is none, or it can never go along; the message says so.
    """
    name, equals, value = word.partition("=")
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name[:40]!r} is not the name of a variable. Write NAME or NAME=VALUE.")
    if why := refusal(name):
        raise ValueError(f"{name} cannot go along: {why}.")
    return name, value if equals else None


def collect(
    named: Sequence[str],
    *,
    only_named: bool = False,
    environ: Mapping[str, str] = os.environ,
    before: Mapping[str, str] | None = None,
) -> Forwarded:
    """Return the variables for the ranks.

    Args:
        named: ``NAME`` or ``NAME=VALUE``, as of ``--env``. only_named: whether nothing else goes along.
        environ: of the notebook or terminal. before: of the session at its start; None = unknown, so that only what is
            named goes along.

    Raises:
        ValueError: a named variable is not set, or can never go along.
    """
    values, left_out = {}, []
    if before is not None and not only_named:
        for name, value in environ.items():
            if before.get(name) == value or not _NAME.fullmatch(name) or _OF_THE_TERMINAL.fullmatch(name):
                continue
            if name == "MPLBACKEND" and value.startswith("module://"):  # ipykernel sets it for its own display
                continue
            if not refusal(name):
                values[name] = value
            elif not name.startswith(("JUPYTERHUB_", "JPY_", "CARME_")):  # nobody expects these to go along
                left_out.append(name)
    for word in named:
        name, given = split_assignment(word)
        if given is None and name not in environ:
            raise ValueError(f"{name} is not set here. Write {name}=VALUE, or set it before.")
        values[name] = environ[name] if given is None else given
    return Forwarded(values, tuple(sorted(left_out)))


def session_environ(pid: int | None = None, proc: Path = Path("/proc")) -> dict[str, str] | None:
    """Return the environment with which the session's container began; None outside of a session.

    It is that of the oldest process above this one that belongs to the session. The kernel keeps it as it was at the
    start of that program, whatever the program has changed since (proc(5), environ).
    """
    found: dict[str, str] | None = None
    pid = os.getpid() if pid is None else pid
    while pid:
        try:
            text = (proc / str(pid) / "environ").read_bytes()
            parent = int((proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):  # of another user, outside of the container
            break
        pairs = (each.partition("=") for each in os.fsdecode(text).split("\0") if "=" in each)
        own = {name: value for name, _, value in pairs}
        found = own if "CARME_SESSION_FOLDER" in own else found
        pid = parent
    return found
