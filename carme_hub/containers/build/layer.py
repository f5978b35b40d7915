"""How a session finds the packages of an image that is a layer on top of another one, which may have layers itself.

Python looks in ``CARME_LAYER`` where the base has carme_packages (``node/packages.py``), and elsewhere in the place of
a user's own packages (PEP 370), which a virtual environment does not have. Jupyter finds kernels and extensions there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from carme_hub.containers.runtime import Plan

#: Where the layer of an image of the store is, inside.
IN_STORE = "/opt/carme/layer"


def next_in_store(layers: Sequence[str]) -> str:
    """Return where the store has the packages of an image on top of one that has these layers."""
    return f"{IN_STORE}-{len(layers) + 1}" if layers else IN_STORE


def layer_environ(layers: Sequence[str]) -> Mapping[str, str]:
    """Return the variables of a session whose image has layers, the uppermost first; {} without one."""
    if not layers:
        return {}
    jupyter = ":".join(f"{each}/share/jupyter" for each in layers)
    return {"CARME_LAYER": ":".join(layers), "PYTHONUSERBASE": layers[0], "JUPYTER_PATH": jupyter}


def layer_path(layers: Sequence[str], path: str) -> str:
    """Return a PATH with the programs of layers before those of their base."""
    return ":".join([*(f"{each}/bin" for each in layers), path])


def with_layers(plan: Plan, layers: Sequence[str], home: str) -> Plan:
    """Return a plan that does not start without a layer in the user's home, so that nothing runs on the base alone."""
    own = [each for each in layers if each.startswith(f"{home}/")]
    return replace(plan, preflight=(*plan.preflight, *own))
