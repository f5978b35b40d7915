"""How a session finds the packages of an image that is a layer on top of another one.

Python looks in ``CARME_LAYER`` where the base has carme_packages (``node/packages.py``), and elsewhere in the place of
a user's own packages (PEP 370), which a virtual environment does not have. Jupyter finds kernels and extensions there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from carme_hub.containers.runtime import Plan

#: Where the layer of an image of the store is, inside.
IN_STORE = "/opt/carme/layer"


def layer_environ(layer: str) -> Mapping[str, str]:
    """Return the variables of a session whose image has a layer, {} without one."""
    if not layer:
        return {}
    return {"CARME_LAYER": layer, "PYTHONUSERBASE": layer, "JUPYTER_PATH": f"{layer}/share/jupyter"}


def layer_path(layer: str, path: str) -> str:
    """Return a PATH with the programs of a layer before those of its base."""
    return f"{layer}/bin:{path}" if layer else path


def with_layer(plan: Plan, layer: str, home: str) -> Plan:
    """Return a plan that does not start without a layer in the user's home, so that nothing runs on the base alone."""
    return replace(plan, preflight=(*plan.preflight, layer)) if layer.startswith(f"{home}/") else plan
