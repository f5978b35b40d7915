# ruff: noqa: PTH108, PTH115, PTH118, PTH123, PTH207, PTH211
"""Give an environment of conda another place: its files name the folder that they were installed into.

Text gets the new path. In a binary file that conda says to have one (``conda-meta``), a path ends with a NUL byte, and
the new one, which is shorter, is filled up with more of them, as conda itself does when it installs ("prefix
replacement"). Other binary files stay as they are: what names a path there, such as compiled Python, need not end so.
This file is also the program
that does it: it runs as the account that unpacks, confined, with nothing but the standard library.
"""

import glob
import json
import os
import re
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    from carme_hub.containers.store.process import Steps

#: Larger files have no path in them, or are none of conda's.
_LARGEST = 2 << 30


def replaced(content: bytes, old: bytes, new: bytes) -> bytes:
    """Return the content of a file with another path; a binary one keeps its length."""
    if b"\0" not in content:
        return content.replace(old, new)

    def shorter(found: "re.Match[bytes]") -> bytes:
        text = found[0][:-1].replace(old, new)
        return text + b"\0" * (len(found[0]) - len(text))

    return re.sub(re.escape(old) + rb"[^\0]*\0", shorter, content)


def binary_files(tree: str) -> "set[bytes]":
    """Return the paths of the binary files in which conda has put the path of the environment."""
    found = set()
    for file in glob.glob(os.path.join(glob.escape(tree), "conda/conda-meta/*.json")):
        try:
            with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), encoding="utf-8") as opened:
                paths = json.load(opened)["paths_data"]["paths"]
            found |= {
                os.fsencode(os.path.join(tree, "conda", each["_path"]))
                for each in paths
                if each.get("file_mode") == "binary"
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue  # not as conda writes it
    return found


def relocate_tree(tree: str, old: bytes, new: bytes) -> int:
    """Replace a path in all files and links of a tree; return in how many."""
    count, binary = 0, binary_files(tree)
    for folder, folders, names in os.walk(os.fsencode(tree)):
        for name in (*names, *folders):  # links to folders are among these
            path = os.path.join(folder, name)
            state = os.lstat(path)
            if stat.S_ISLNK(state.st_mode):
                target = os.readlink(path)
                if target.startswith(old):
                    os.unlink(path)
                    inside = os.fsencode(tree) + target[len(old) :]
                    os.symlink(os.path.relpath(inside, folder), path)  # wherever it is, also on its way there
                    count += 1
                continue
            if not stat.S_ISREG(state.st_mode) or state.st_size > _LARGEST:
                continue
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                content = file.read()
            if old not in content or (b"\0" in content and path not in binary):
                continue
            with open(os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_TRUNC), "wb") as file:
                file.write(replaced(content, old, new))
            count += 1
    return count


def relocate(layer: "Path", old: str, new: str, steps: "Steps") -> None:
    """Replace a path in all files of a layer, as the account that unpacks.

    Args:
        old: the longer one.

    Raises:
        ContainerError: it cannot be done, or the layer has become larger than it may be.
    """
    from carme_hub.errors import ContainerError

    if len(os.fsencode(old)) < len(os.fsencode(new)):
        raise ContainerError(f"{old} is shorter than {new}, so the environment of conda cannot be moved there")
    with open(__file__, encoding="utf-8") as own:
        program = own.read()
    steps.run(["python3", "-I", "-c", program, str(layer), old, new], tree=layer)


if __name__ == "__main__":
    relocate_tree(sys.argv[1], os.fsencode(sys.argv[2]), os.fsencode(sys.argv[3]))
