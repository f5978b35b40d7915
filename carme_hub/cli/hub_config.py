"""Read ``jupyterhub_config.py`` as the hub reads it, for commands such as ``carme-hub doctor`` and ``proxy``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jupyterhub.app import JupyterHub
from traitlets.config import Config, PyFileConfigLoader

from carme_hub.errors import ConfigError


def load_config(file: Path) -> Config:
    """Run a configuration file and return its settings; raise ``ConfigError`` where it fails."""
    if not file.is_file():
        raise ConfigError(f"{file}: there is no such file; name another with --config")
    try:
        return PyFileConfigLoader(file.name, str(file.resolve().parent)).load_config()
    except ConfigError:
        raise
    except Exception as error:
        # The file is the site's program and can fail in any way.
        raise ConfigError(f"{file} fails: {type(error).__name__}: {error}") from error


def homes_of(config: Config) -> str:
    """Return where homes of users are, with ``{username}``, as the spawner has it; "" = as the system says."""
    return str(config.SlurmContainerSpawner.get("req_homedir", ""))


def hub_of(config: Config) -> Any:
    """Return a JupyterHub application with these settings, not yet initialized."""
    return JupyterHub(config=config)
