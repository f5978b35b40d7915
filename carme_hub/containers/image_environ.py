"""Variables that an image sets (its ``Env``) and that sessions get: those of an allow-list, and its PATH.

An entry point is never run, and most variables of an image are of its build or of an engine: an allow-list takes what
programs inside need. What controls the loader, an interpreter, a runtime, the hub or Slurm is never taken, whatever the
list says (``check_user_environ``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from carme_hub.errors import ContainerError

from .check import check_path, check_user_environ

#: Names, with ``*``, of the variables that are taken by default.
DEFAULT_NAMES = (
    *("CONDA_DIR", "CUDA_HOME", "CUDA_PATH", "CUDA_VERSION", "CUDNN_VERSION", "HPCX_*", "JAVA_HOME", "JULIA_*"),
    *("LANG", "LANGUAGE", "LC_ALL", "NCCL_VERSION", "OMPI_*", "OPAL_PREFIX", "PYTORCH_VERSION", "R_HOME"),
    *("R_LIBS_SITE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "TENSORFLOW_VERSION", "TF_*", "TORCH_*", "TZ", "UCX_*"),
    *("VIRTUAL_ENV",),
)
_LONGEST = 4096


def image_variables(environ: Iterable[tuple[str, str]], allowed: Iterable[str]) -> Mapping[str, str]:
    """Return the variables of an image that a session gets, without PATH."""
    allowed, found = tuple(allowed), {}
    for name, value in environ:
        if len(value) > _LONGEST or not any(fnmatchcase(name, pattern) for pattern in allowed):
            continue
        try:
            check_user_environ({name: value})
        except ContainerError:
            continue
        found[name] = value
    return found


def image_path(environ: Iterable[tuple[str, str]], default: str) -> str:
    """Return the PATH inside: the image's folders in its order, then those of the default that it leaves out."""
    folders = []
    for folder in dict(environ).get("PATH", "").split(":"):
        try:
            check_path(folder, "a folder of PATH")
        except ContainerError:
            continue  # a relative one would be the user's working folder
        folders.append(folder)
    return ":".join(dict.fromkeys((*folders, *default.split(":"))))
