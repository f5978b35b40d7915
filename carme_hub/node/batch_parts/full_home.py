# ruff: noqa: UP006, UP035, PTH102, PTH103, PTH106, PTH110, PTH112, PTH114, PTH118, PTH120
"""Starts a session whose home is full: its session folder is on this node, for as long as the session lasts.

The batch script runs this text from the data document where nothing can be written into the session folder. All that
the document says of that folder then means one below /tmp, for which the hub has rendered the container, too. What
Jupyter could not start without is there as well; what is in the home stays readable. At the end the log goes home if
there is room again. Ranks on other nodes do not see the folder: such a session computes on one node.
"""

import contextlib
import json
import os
import shutil

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List  # noqa: F401  of a comment

#: What goes to the session folder at home at the end, if there is room.
KEPT = ("job.log", "end.json")
#: Folders of a home that programs make at their first start, with the variable that names another place.
MADE_AT_START = (
    (".ipython/profile_default", "IPYTHONDIR", "ipython"),
    (".jupyter", "JUPYTER_CONFIG_DIR", "jupyter"),
    (".local/share/jupyter", "JUPYTER_DATA_DIR", "jupyter-data"),
)

#: The folder that ``move`` has made.
made = []  # type: List[str]


def replaced(value: "Any", old: str, new: str) -> "Any":
    """Return a JSON value with the name of a folder replaced in each of its texts."""
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, list):
        return [replaced(each, old, new) for each in value]
    if isinstance(value, dict):
        return {name: replaced(each, old, new) for name, each in value.items()}
    return value


def move(document: "Dict[str, Any]") -> str:
    """Return the text of the document for the folder on this node, and make that folder.

    Raises:
        OSError: it cannot be made. KeyError: the document has none.
    """
    part, old = document["full_home"], document["session_folder"]
    new = part["folder"]
    os.mkdir(os.path.dirname(new), 0o700)  # one that is there could be anybody's
    made.append(os.path.dirname(new))
    if document["plan"].get("node_folder"):  # the first look at the node has made it, and the next one makes it again
        with contextlib.suppress(OSError):
            os.rmdir(document["plan"]["node_folder"])
    moved = replaced(document, old, new)
    plan = moved["plan"]
    plan["argv"] = part["argv"]
    environ, home = plan["environ"], plan["environ"].get("HOME", "")
    environ["CARME_HOME_FULL"] = "1"
    environ["XDG_CACHE_HOME"], environ["JUPYTERLAB_WORKSPACES_DIR"] = new + "/cache", new + "/workspaces"
    for place, variable, name in MADE_AT_START:
        if not os.path.isdir(os.path.join(home, place)):
            environ[variable] = new + "/" + name
    if "singleuser" in moved:
        moved["files"]["singleuser.json"]["text"] = json.dumps(moved["singleuser"])
    os.environ["CARME_SESSION_FOLDER"] = new
    return json.dumps(moved)


def forget() -> None:
    """Remove the folder on this node, with all secrets in it: the session could not begin there, either."""
    for folder in made:
        shutil.rmtree(folder, ignore_errors=True)


def end(old: str, new: str) -> None:
    """Keep what can be kept of the session, and remove its folder on this node."""
    try:
        os.makedirs(old, mode=0o700, exist_ok=True)
        for name in KEPT:
            target = os.path.join(old, name)
            if not os.path.islink(target) and os.path.exists(os.path.join(new, name)):
                shutil.copyfile(os.path.join(new, name), target)
    except OSError:
        pass
    forget()
