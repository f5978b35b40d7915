# ruff: noqa: PTH100, PTH103, PTH112, PTH117, PTH119, PTH120, PTH208
"""carme_packages: packages that people install in a session come before the image's, and reach the ranks of its runs.

An image has this file in its Python's site-packages, and beside it carme-packages.pth, a line that imports it at each
start of Python (see Python's module site). ``CARME_PACKAGES`` names a folder of the session folder, which the ranks of
the session's runs see too, on any node; it is removed with the session. pip installs into it as long as nobody names
another place:

- by ``--prefix``, since ``--target`` would install everything again that the image has;
- without removing what the image has in another version, which it could not: for pip, that is outside;
- also with ``--user``, for which a virtual environment has no place.

``CARME_LAYER`` names the folder of the packages of an image that a user has built (``node/images/layer.py``), or
several with colons between them, the uppermost first: they come before those of its base, and after those of the
session.

Standard library only, and nothing that takes time to import.
"""

import os
import sys

#: Options by which pip installs somewhere else.
PLACES = ("--prefix", "--target", "-t", "--root", "--python")


def place_in(folder: str) -> str:
    """Return where this Python's packages are in a folder."""
    return f"{folder}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"


def use(folder: str, below: str = "") -> None:
    """Have this Python find the packages of a folder; they come before the image's and after the script's own.

    ``below``: a folder that is in use, and whose packages come before them.
    """
    place = place_in(folder)
    if place in sys.path:  # as the place of a user's packages, by PYTHONUSERBASE
        return
    try:
        # A folder that is made later would not be seen: importlib remembers that it was not there.
        os.makedirs(place, 0o700, True)
    except OSError:  # a full disk, or a home or an image that is read-only
        if not os.path.isdir(place):
            return
    before = list(sys.path)
    if any(name.endswith(".pth") for name in os.listdir(place)):
        import site  # it is imported already, unless Python was started with -S

        site.addsitedir(place)  # editable installs are .pth files
    found = [path for path in sys.path if path not in before] or [place]
    beside = os.path.dirname(os.path.abspath(__file__))  # the image's packages
    at = before.index(beside) if beside in before else len(before)
    if below and place_in(below) in before:
        at = before.index(place_in(below)) + 1
    sys.path[:] = [*before[:at], *found, *before[at:]]


def pip_words(argv: "list[str]") -> "list[str]":
    """Return the words after ``pip`` in a command line of Python, [] where it does not run pip."""
    words = argv[1:]
    while words and words[0].startswith("-") and words[0] not in ("-m", "-c"):
        words = words[2 if words[0] in ("-W", "-X") else 1 :]
    if words[:2] == ["-m", "pip"]:
        return words[2:]
    return words[1:] if words and os.path.basename(words[0]).rstrip("0123456789.") == "pip" else []


def chooses_no_place(words: "list[str]") -> bool:
    """Return whether these words of pip install packages, and neither they nor pip's settings name a place for them."""
    return "install" in words and not any(word.partition("=")[0] in PLACES for word in words) and not configures_place()


def configures_place() -> bool:
    """Return whether pip's variables or files name a place: it refuses two of them."""
    try:
        from pip._internal.configuration import Configuration

        found = Configuration(isolated=False)
        found.load()
        return any(value and f"--{name.rpartition('.')[2]}" in PLACES for name, value in found.items())
    except Exception:  # noqa: BLE001  another release of pip, or a file that pip itself complains of
        return False


def install_into(folder: str) -> None:
    """Have pip, which this process is about to run, install into the folder."""
    os.environ["PIP_PREFIX"], os.environ["PIP_USER"] = folder, "no"
    os.environ.setdefault("PIP_NO_WARN_SCRIPT_LOCATION", "1")
    if "--user" in sys.argv:
        sys.argv.remove("--user")
        sys.stderr.write("[carme] --user: the packages go to this session, and are removed with it.\n")


def remove_only_from(folder: str) -> None:
    """Have pip leave the image's packages where they are, and install other versions beside them."""
    try:
        from pip._internal.metadata import base
        from pip._internal.req.req_uninstall import UninstallPathSet
        from pip._internal.utils import misc
    except ImportError:  # another release of pip
        return

    def is_local(path: str) -> bool:
        """Return whether pip may remove what is there; it leaves the rest, and installs beside it (req_uninstall)."""
        return os.path.realpath(path).startswith(os.path.realpath(folder) + os.sep)

    for module in (base, misc):
        vars(module)["is_local"] = is_local
    # Releases since 23.1 compare with sys.prefix here, and do not ask is_local.
    setattr(UninstallPathSet, "_permitted", lambda _, path: is_local(path))  # noqa: B010  mypy sees a method


def main() -> None:
    """Do both, where this is a session."""
    folder, layers = os.environ.get("CARME_PACKAGES", ""), os.environ.get("CARME_LAYER", "").split(":")
    if os.path.isabs(folder):
        use(folder)
        words = pip_words(getattr(sys, "orig_argv", sys.argv))
        if words:
            remove_only_from(folder)
        if chooses_no_place(words):
            install_into(folder)
    upper = ""
    for layer in layers:
        if os.path.isabs(layer):
            use(layer, upper)
            upper = layer


if __name__ == "carme_packages":
    main()
