#!/usr/bin/env python3
# ruff: noqa: PTH102, PTH103, PTH105, PTH107, PTH108, PTH112, PTH113, PTH114, PTH118, PTH119, PTH123
"""Builds an image of a user: packages of Python in a folder, on top of the image in whose container this runs.

The batch script of the build runs it as ``python3 carme-build FOLDER`` with the base image's Python and the session
folder, which has ``build.json`` and ``carme_packages.py``. What is installed goes to ``~/.carme/images/ID.part``, which
becomes ``~/.carme/images/ID`` when it is complete, within its bounds, and a new Python of the base finds it. So a
build that is killed leaves nothing that could be taken for an image. On top of another image of the same user it begins
with the files of that one, by hard links, and so is whole when that one is removed. Nothing here is trusted by the hub:
what others are offered is unpacked and looked at again (``carme-hub image publish``).
"""

import json
import os
import shutil
import subprocess
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: Exit codes; those below 64 are of pip.
TOO_LARGE, NOT_FOUND, NO_PIP, BAD_DATA, NO_IMAGE = 65, 66, 67, 68, 69
#: Files of a layer that are about it, and are not a part of what comes on top of it.
ABOUT = ("image.json", "requirements.txt")
#: Seconds between two looks at the size while packages are installed.
LOOK = 5.0
#: Runs pip in a process with carme_packages, which keeps it from changing what the base has.
PIP = """import runpy, sys
folder, layer = sys.argv[1:3]
sys.path.insert(0, folder)
import carme_packages
sys.path.remove(folder)
carme_packages.use(layer)
carme_packages.remove_only_from(layer)
carme_packages.install_into(layer)
sys.argv = ["pip", *sys.argv[3:]]
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
#: What the layer has, by the base's Python: names and versions; and whether that Python looks there by itself.
LOOK_INSIDE = """import importlib.metadata, json, sys
place = sys.argv[1]
found = {each.name: each.version for each in importlib.metadata.distributions(path=[place]) if each.name}
about = {"found": place in sys.path, "python": sys.version.split()[0]}
print(json.dumps({"packages": dict(sorted(found.items())), **about}))
"""


class CannotBuild(Exception):
    """The image cannot be built; its arguments are the exit code and a sentence."""


def say(text: str) -> None:
    """Print a line into the log of the job."""
    sys.stdout.write(f"[carme] {text}\n")
    sys.stdout.flush()


def size_of(folder: str) -> "tuple[int, int]":
    """Return the bytes and the number of files in a folder, without following links."""
    size = files = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                size += os.lstat(os.path.join(where, name)).st_size
            except OSError:
                continue
            files += 1
    return size, files


def mib(size: float) -> str:
    """Return a size in words."""
    return f"{size / (1 << 20):.0f} MiB"


class Bound:
    """Ends a process when its folder has become too large."""

    def __init__(self, folder: str, most: int, process: "Any") -> None:
        self.broken = False
        self._folder, self._most, self._process, self._end = folder, most, process, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        pause = LOOK
        while not self._end.wait(pause):
            began = time.monotonic()
            if size_of(self._folder)[0] > self._most:
                self.broken = True
                self._process.terminate()
                return
            pause = max(LOOK, 10 * (time.monotonic() - began))  # looking must not take longer than building

    def stop(self) -> None:
        """Look no more."""
        self._end.set()
        self._thread.join()


def python_environ(layer: str) -> "dict[str, str]":
    """Return the environment of a session with this layer, as ``containers.build.layer`` has it."""
    environ = {name: value for name, value in os.environ.items() if name != "CARME_PACKAGES"}
    layers = [layer, environ["CARME_LAYER"]] if environ.get("CARME_LAYER") else [layer]  # the base may have some
    return {**environ, "CARME_LAYER": ":".join(layers), "PYTHONUSERBASE": layer}


def begin_with(other: str, layer: str, most: int) -> None:
    """Begin with the files of another image of this user: pip replaces files, and never writes into one.

    Raises:
        CannotBuild: that image is not there any more, or is too large already.
    """

    def link(source: str, target: str) -> str:
        try:
            os.link(source, target, follow_symlinks=False)
        except OSError:  # a file system without links, or with too many of this file
            shutil.copy2(source, target, follow_symlinks=False)
        return target

    if not os.path.isfile(os.path.join(other, "image.json")):
        raise CannotBuild(NO_IMAGE, "your image on which it is to be built is not there any more: " + other)
    if size_of(other)[0] > most:
        raise CannotBuild(TOO_LARGE, f"your image below it has more than the {mib(most)} that an image may have here")
    ignore = shutil.ignore_patterns(*ABOUT)
    top = os.path.normpath(other)
    shutil.copytree(
        *(other, layer),
        symlinks=True,
        ignore=lambda where, names: ignore(where, names) if os.path.normpath(where) == top else [],
        copy_function=link,
        dirs_exist_ok=True,
    )


def install(folder: str, layer: str, build: "dict[str, Any]") -> None:
    """Install the packages into the layer."""
    text = os.path.join(layer, "requirements.txt")
    with open(text, "w", encoding="utf-8") as file:
        file.write(build["text"])
    words = ["install", "--no-input", "--disable-pip-version-check", "--no-warn-script-location", "--progress-bar=off"]
    argv = [sys.executable, "-c", PIP, folder, layer, *words, "--requirement", text]
    environ = {**os.environ, "CARME_PACKAGES": layer, "PYTHONUNBUFFERED": "1", **build.get("environ", {})}
    most = int(build["bytes"])
    process = subprocess.Popen(argv, env=environ, stdin=subprocess.DEVNULL, cwd=layer)
    bound = Bound(layer, most, process)
    status = process.wait()
    bound.stop()
    size, files = size_of(layer)
    if bound.broken or size > most:
        raise CannotBuild(TOO_LARGE, f"the packages take more than the {mib(most)} that an image may have here")
    if status:
        raise CannotBuild(status if 0 < status < 64 else 1, "pip did not install the packages; its last lines say why")
    say(f"installed: {mib(size)} in {files} files")


def look_inside(layer: str) -> "dict[str, Any]":
    """Return what is in the layer, as a new Python of the base sees it.

    Raises:
        CannotBuild: that Python does not look there.
    """
    place = os.path.join(layer, "lib", "python{}.{}".format(*sys.version_info[:2]), "site-packages")
    argv = [sys.executable, "-c", LOOK_INSIDE, place]
    done = subprocess.run(argv, env=python_environ(layer), capture_output=True, text=True, timeout=300, check=False)
    try:
        found = json.loads(done.stdout)
    except ValueError:
        raise CannotBuild(
            NOT_FOUND, f"the base's Python does not start with the packages: {done.stderr[-500:]}"
        ) from None
    if not found["found"]:
        raise CannotBuild(
            NOT_FOUND,
            "the Python of the base image looks for packages in no other place: it is a virtual environment without "
            "carme_packages. Take another base image, or ask an administrator",
        )
    return dict(found)


def put_finder(folder: str, layer: str) -> None:
    """Put carme_packages into the layer, for a base that has none: a Python that looks there runs it at its start."""
    place = os.path.join(layer, "lib", "python{}.{}".format(*sys.version_info[:2]), "site-packages")
    os.makedirs(place, exist_ok=True)
    module, path = (os.path.join(place, name) for name in ("carme_packages.py", "carme-packages.pth"))
    for each in (module, path):
        if os.path.lexists(each):  # it may be a file of another image, too
            os.remove(each)
    shutil.copyfile(os.path.join(folder, "carme_packages.py"), module)
    with open(path, "w", encoding="utf-8") as file:
        file.write("import carme_packages\n")


def describe(layer: str, build: "dict[str, Any]", found: "dict[str, Any]") -> None:
    """Write what the image is: for its user, and for who publishes it."""
    size, files = size_of(layer)
    about = {name: build[name] for name in ("id", "name", "base", "base_digest", "kind", "text")}
    about.update(
        packages=found["packages"], python=found["python"], size_bytes=size, files=files, when=int(time.time())
    )
    about.update(found.get("more", {}))
    path = os.path.join(layer, "image.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(about, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())


def remove_old(images: str, ids: "list[str]") -> None:
    """Remove images that the hub does not know any more."""
    for each in ids:
        if os.path.basename(each) == each and len(each) == 36:
            for name in (each, each + ".part"):
                path = os.path.join(images, name)
                if os.path.islink(path):
                    os.unlink(path)  # of a build with packages of conda that was killed
                elif os.path.isdir(path):
                    shutil.rmtree(path, ignore_errors=True)


def make(folder: str, build: "dict[str, Any]", home: str) -> str:
    """Build the image, and return its folder.

    Raises:
        CannotBuild: it could not be built; nothing of it is left.
    """
    images = os.path.join(home, ".carme", "images")
    os.makedirs(images, mode=0o700, exist_ok=True)
    remove_old(images, build.get("remove", []))
    layer, done = os.path.join(images, build["id"] + ".part"), os.path.join(images, build["id"])
    shutil.rmtree(layer, ignore_errors=True)
    os.mkdir(layer, 0o700)
    try:
        say("image {name} on top of {base}".format(**build))
        check = [sys.executable, "-c", "import pip"]
        if subprocess.run(check, capture_output=True, check=False, timeout=120).returncode:
            raise CannotBuild(NO_PIP, "the Python of the base image has no pip")
        if build.get("below"):
            say("it begins with the packages of your image {below_name}".format(**build))
            begin_with(os.path.join(images, build["below"]), layer, int(build["bytes"]))
        install(folder, layer, build)
        put_finder(folder, layer)
        found = look_inside(layer)
        for name, version in found["packages"].items():
            say(f"  {name} {version}")
        describe(layer, build, found)
        os.replace(layer, done)
    finally:
        shutil.rmtree(layer, ignore_errors=True)
    return done


def description(folder: str) -> "dict[str, Any]":
    """Return what the session folder says of the build."""
    with open(os.path.join(folder, "build.json"), encoding="utf-8") as file:
        return dict(json.load(file))


def ready(build: "dict[str, Any]") -> int:
    """Say that the image is there, and return the exit code of that."""
    say("the image {name} is ready: choose it in the form".format(**build))
    return 0


def exit_code(work: "Callable[[], int]") -> int:
    """Do the work of a build, and return its exit code; where it fails, say why."""
    try:
        return work()
    except CannotBuild as error:
        say(f"not built: {error.args[1]}.")
        return int(error.args[0])
    except (IndexError, KeyError, ValueError) as error:
        say(f"not built: what is to be built cannot be read ({type(error).__name__}).")
        return BAD_DATA
    except OSError as error:
        say(f"not built: {error.filename or 'your home'} cannot be used: {error.strerror}.")
        return 1


def main(arguments: "list[str]") -> int:
    """Build the image that ``build.json`` of the session folder describes."""
    os.umask(0o077)

    def work() -> int:
        build = description(arguments[0])
        make(arguments[0], build, os.environ["HOME"])
        return ready(build)

    return exit_code(work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
