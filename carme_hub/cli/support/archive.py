"""Write a bundle: one packed file that only its owner may read, new, and complete or not there at all."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Mapping
from pathlib import Path

from carme_hub.cli.base import UsageError


def check_folder(folder: Path) -> None:
    """Raise ``UsageError`` unless the folder is the caller's own, and nobody else can write in it."""
    try:
        status = folder.stat()
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror}; name a folder of yours with --to") from error
    if not stat.S_ISDIR(status.st_mode):
        raise UsageError(f"{folder} is no folder; name one of yours with --to")
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise UsageError(f"others can write in {folder}: name a folder of yours that only you can write in, with --to")


def free_name(folder: Path, stem: str, suffix: str) -> Path:
    """Return the path of a file that is not there yet: with a number where others have the name."""
    file, number = folder / f"{stem}{suffix}", 1
    while os.path.lexists(file):
        number += 1
        file = folder / f"{stem}-{number}{suffix}"
    return file


def write_archive(file: Path, files: Mapping[str, str], at: float) -> Path:
    """Write files into a new archive (tar.gz, mode 0600), below a folder of its own name, and return its path.

    Args:
        at: the time of all files, UTC epoch seconds.

    Raises:
        UsageError: there is such a file already. OSError: it cannot be written.
    """
    partial = file.with_name(f".{file.name}.{os.getpid()}.half")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as raw:
            with tarfile.open(fileobj=raw, mode="w:gz") as archive:
                for name, text in sorted(files.items()):
                    _add(archive, f"{file.name.removesuffix('.tar.gz')}/{name}", text.encode("utf-8", "replace"), at)
            raw.flush()
            os.fsync(raw.fileno())
        try:
            os.link(partial, file)  # a rename would replace a file of that name
        except FileExistsError as error:
            raise UsageError(f"{file} exists already, and stays as it is") from error
    finally:
        partial.unlink(missing_ok=True)
    return file


def write_private(file: Path, text: str) -> Path:
    """Write a new file that only its owner may read; raise ``UsageError`` where there is one already."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise UsageError(f"{file} exists already, and stays as it is") from error
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        opened.write(text)
    return file


def _add(archive: tarfile.TarFile, name: str, content: bytes, at: float) -> None:
    about = tarfile.TarInfo(name)
    about.size, about.mode, about.mtime = len(content), 0o600, int(at)
    archive.addfile(about, io.BytesIO(content))
