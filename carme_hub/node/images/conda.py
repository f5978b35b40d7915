#!/usr/bin/env python3
# ruff: noqa: PTH100, PTH102, PTH103, PTH105, PTH108, PTH110, PTH114, PTH118, PTH120
# ruff: noqa: PTH123, PTH207, PTH211
"""Builds an image of a user by an environment.yml: an environment of conda in a folder, and a kernel that runs in it.

The batch script of the build runs it as ``python3 carme-build FOLDER`` with the base image's Python in its container,
and the session folder, which has ``build.json``, ``layer.py`` and ``carme_packages.py``. The
environment is ``~/.carme/images/ID/conda``: its files name that folder, so while it is made ``ID`` is a link to
``ID.part``, which takes its place once it is complete and within its bounds.

py-rattler solves and installs (pip fetches it where the base has none): no conda has to be there, nothing of the
packages is run, and it is one wheel without dependencies.
"""

import asyncio
import glob
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from carme_hub.node.images import layer as parts
else:  # beside this file, which is a file of the session folder
    sys.dont_write_bytecode, _before = True, sys.dont_write_bytecode
    _spec = importlib.util.spec_from_file_location(
        "carme_build", os.path.join(os.path.dirname(os.path.abspath(__file__)), "layer.py")
    )
    parts = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(parts)
    sys.dont_write_bytecode = _before

#: What solves and installs.
RATTLER = "py-rattler>=0.20,<1"
#: How much the folder may hold while packages are unpacked, as a multiple of the image: a cache is part of it.
COPIES = 3
#: The oldest Python on which ``%%distributed`` runs.
OLDEST = (3, 11)
INSTALL = "--install"
LOOK_INSIDE = """import importlib.metadata, json, sys, sysconfig
place = sysconfig.get_paths()["purelib"]
found = {each.name: each.version for each in importlib.metadata.distributions(path=[place]) if each.name}
import ipykernel
print(json.dumps({"place": place, "packages": found, "python": sys.version.split()[0]}))
"""


async def install_environment(wanted: "dict[str, Any]") -> None:
    """Solve and install; runs in a process of its own, which has py-rattler."""
    import rattler

    cache = pathlib.Path(wanted["cache"])
    specs = [rattler.MatchSpec(each, strict=False) for each in wanted["packages"]]
    channels = [rattler.Channel(each) for each in wanted["channels"]]
    gateway = rattler.Gateway(cache_dir=cache / "repodata")
    parts.say("looking for packages in {}".format(", ".join(wanted["channels"])))
    # What the node has, as CUDA; CONDA_OVERRIDE_CUDA and the like say what others have.
    there = rattler.VirtualPackage.detect(rattler.VirtualPackageOverrides.from_env())
    records = await rattler.solve(channels, specs, gateway=gateway, virtual_packages=there)
    for each in sorted(records, key=lambda record: record.name.source):
        parts.say(f"  {each.name.source} {each.version} {each.build} ({each.channel})")
    await rattler.install(
        *(records, wanted["prefix"]), cache_dir=cache / "pkgs", execute_link_scripts=False, show_progress=False
    )


def fetch_rattler(tools: str, environ: "dict[str, str]") -> None:
    """Have pip install py-rattler into a folder, where the base has none.

    Raises:
        CannotBuild: it cannot.
    """
    if importlib.util.find_spec("rattler") is not None:
        return
    words = ["install", "--no-input", "--disable-pip-version-check", "--quiet", "--no-deps", "--progress-bar=off"]
    argv = [sys.executable, "-m", "pip", *words, "--target", tools, RATTLER]
    if subprocess.run(argv, env=environ, stdin=subprocess.DEVNULL, check=False).returncode:
        raise parts.CannotBuild(
            parts.NO_PIP,
            "py-rattler, which installs packages of conda, is neither in the base image nor where pip looks; ask an "
            "administrator",
        )


def plain_environ(build: "dict[str, Any]") -> "dict[str, str]":
    """Return the environment of programs that are none of the session's."""
    ours = ("CARME_PACKAGES", "CARME_LAYER", "PYTHONUSERBASE", "PIP_PREFIX", "PIP_USER")
    environ = {name: value for name, value in os.environ.items() if name not in ours}
    return {**environ, "PYTHONUNBUFFERED": "1", "PYTHONNOUSERSITE": "1", **build.get("environ", {})}


def run(argv: "list[str]", environ: "dict[str, str]", layer: str, most: int, failed: str) -> None:
    """Run a program that fills the layer; end it when it has become too large.

    Raises:
        CannotBuild: it failed.
    """
    process = subprocess.Popen(argv, env=environ, stdin=subprocess.DEVNULL, cwd=layer)
    bound = parts.Bound(layer, COPIES * most, process)
    status = process.wait()
    bound.stop()
    if bound.broken:
        raise parts.CannotBuild(
            parts.TOO_LARGE, f"the packages take more than the {parts.mib(most)} that an image may have here"
        )
    if status:
        raise parts.CannotBuild(1, f"{failed} (status {status}); the last lines say why")


def fill(layer: str, prefix: str, build: "dict[str, Any]") -> None:
    """Install all packages into the environment."""
    most, environ = int(build["bytes"]), plain_environ(build)
    tools, cache = os.path.join(layer, ".tools"), os.path.join(layer, ".cache")
    fetch_rattler(tools, environ)
    wanted = {"packages": build["packages"], "channels": list(build["channels"].values()), "prefix": prefix}
    text = os.path.join(layer, "wanted.json")
    with open(text, "w", encoding="utf-8") as file:
        json.dump({**wanted, "cache": cache}, file)
    argv = [sys.executable, os.path.abspath(__file__), INSTALL, text]
    paths = [tools, *filter(None, [environ.get("PYTHONPATH", "")])]
    of_rattler = {**environ, "PYTHONPATH": os.pathsep.join(paths), "RATTLER_CACHE_DIR": cache}
    run(argv, of_rattler, layer, most, "the packages of conda were not installed")
    os.unlink(text)
    for each in (tools, cache):
        shutil.rmtree(each, ignore_errors=True)
    if build["pip"]:
        text = os.path.join(layer, "requirements.txt")
        with open(text, "w", encoding="utf-8") as file:
            file.write(build["pip"])
        words = ["install", "--no-input", "--disable-pip-version-check", "--no-warn-script-location"]
        argv = [python_of(prefix), "-m", "pip", *words, "--progress-bar=off", "--requirement", text]
        run(argv, environ, layer, most, "pip did not install its part")
    size, files = parts.size_of(layer)
    if size > most:
        raise parts.CannotBuild(
            parts.TOO_LARGE, f"the packages take more than the {parts.mib(most)} that an image may have here"
        )
    parts.say(f"installed: {parts.mib(size)} in {files} files")


def python_of(prefix: str) -> str:
    """Return the Python of an environment.

    Raises:
        CannotBuild: it has none.
    """
    for name in ("python", "python3"):
        if os.path.exists(os.path.join(prefix, "bin", name)):
            return os.path.join(prefix, "bin", name)
    raise parts.CannotBuild(
        parts.NOT_FOUND, "the environment has no Python, which its kernel needs: list python among its packages"
    )


def look_inside(prefix: str, environ: "dict[str, str]") -> "dict[str, Any]":
    """Return what the environment's Python says of itself: where its packages are, their names and versions.

    Raises:
        CannotBuild: it does not start, or has no ipykernel.
    """
    argv = [python_of(prefix), "-c", LOOK_INSIDE]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=300, check=False)
    try:
        found = dict(json.loads(done.stdout))
    except ValueError:
        raise parts.CannotBuild(
            parts.NOT_FOUND, f"no kernel starts with the environment's Python: {done.stderr.strip()[-500:]}"
        ) from None
    for file in glob.glob(os.path.join(prefix, "conda-meta", "*.json")):
        with open(file, encoding="utf-8") as opened:
            about = json.load(opened)
        found["packages"][str(about["name"])] = str(about["version"])
    found["packages"] = dict(sorted(found["packages"].items()))
    return found


def put_carme(folder: str, found: "dict[str, Any]") -> bool:
    """Put our part of a session into the environment, as the base has it; return whether runs work in it.

    pip in a session installs into the session then (carme_packages), and ``%%distributed`` is there.
    """
    place = found["place"]
    shutil.copyfile(os.path.join(folder, "carme_packages.py"), os.path.join(place, "carme_packages.py"))
    with open(os.path.join(place, "carme-packages.pth"), "w", encoding="utf-8") as file:
        file.write("import carme_packages\n")
    if os.path.exists(os.path.join(place, "carme_hub")):
        return True
    version = tuple(int(each) for each in found["python"].split(".")[:2])
    ours = importlib.util.find_spec("carme_hub")
    if version < OLDEST or ours is None or not ours.submodule_search_locations:
        why = (
            "the base image has no carme-hub" if version >= OLDEST else "its Python is older than {}.{}".format(*OLDEST)
        )
        parts.say(f"%%distributed is not in the environment: {why}")
        return False
    kept = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ours.submodule_search_locations[0], os.path.join(place, "carme_hub"), ignore=kept)
    return True


def put_kernel(layer: str, prefix: str, build: "dict[str, Any]", *, runs: bool) -> None:
    """Write the kernel that runs in the environment."""
    argv = [python_of(prefix), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {
        "argv": [*argv, *(["--ext", "carme_hub.training"] if runs else [])],
        "display_name": "{name} (conda)".format(**build),
        "language": "python",
        "env": {"CONDA_PREFIX": prefix, "PATH": f"{prefix}/bin:${{PATH}}"},
        "metadata": {"debugger": True},
    }
    place = os.path.join(layer, "share", "jupyter", "kernels", "conda-{name}".format(**build))
    os.makedirs(place, exist_ok=True)
    with open(os.path.join(place, "kernel.json"), "w", encoding="utf-8") as file:
        json.dump(spec, file, indent=1)
        file.write("\n")
    parts.say("kernel: {name} (conda)".format(**build))


def unlink(path: str) -> None:
    """Remove a link, if it is one."""
    if os.path.islink(path):
        os.unlink(path)


def make(folder: str, build: "dict[str, Any]", home: str) -> str:
    """Build the image, and return its folder.

    Raises:
        CannotBuild: it could not be built; nothing of it is left.
    """
    images = os.path.join(home, ".carme", "images")
    os.makedirs(images, mode=0o700, exist_ok=True)
    parts.remove_old(images, build.get("remove", []))
    layer, done = os.path.join(images, build["id"] + ".part"), os.path.join(images, build["id"])
    shutil.rmtree(layer, ignore_errors=True)
    unlink(done)
    os.mkdir(layer, 0o700)
    os.symlink(build["id"] + ".part", done)
    prefix = os.path.join(done, "conda")
    try:
        parts.say("image {name} on top of {base}, with packages of conda".format(**build))
        fill(layer, prefix, build)
        found = look_inside(prefix, plain_environ(build))
        runs = put_carme(folder, found)
        put_kernel(layer, prefix, build, runs=runs)
        argv = [python_of(prefix), "-m", "compileall", "-q", "-j", "0", found["place"]]
        subprocess.run(argv, env=plain_environ(build), stdout=subprocess.DEVNULL, check=False)
        for name, version in found["packages"].items():
            parts.say(f"  {name} {version}")
        parts.describe(layer, build, {**found, "more": {"channels": build["channels"]}})
        unlink(done)
        os.replace(layer, done)
    finally:
        unlink(done)
        shutil.rmtree(layer, ignore_errors=True)
    return done


def main(arguments: "list[str]") -> int:
    """Build the image that ``build.json`` of the session folder describes."""
    os.umask(0o077)
    if arguments[:1] == [INSTALL]:
        with open(arguments[1], encoding="utf-8") as file:
            wanted = json.load(file)
        try:
            asyncio.run(install_environment(wanted))
        except Exception as error:  # noqa: BLE001  rattler has many, and their text is for the user
            parts.say(f"{type(error).__name__}: {error}")
            os._exit(1)
        os._exit(0)  # without Python's end, in which threads of py-rattler 0.28 crash now and then (SIGSEGV)

    def work() -> int:
        build = parts.description(arguments[0])
        make(arguments[0], build, os.environ["HOME"])
        return int(parts.ready(build))

    return int(parts.exit_code(work))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
