"""Commands that read the hub's own configuration file, as the hub reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jupyterhub.app import JupyterHub
from traitlets.config import Config, PyFileConfigLoader

from carme_hub.errors import ConfigError


def load_config(file: Path) -> Config:
    """Run a configuration file and return what it set; ``ConfigError`` says why it cannot be used."""
    if not file.is_file():
        raise ConfigError(f"{file}: there is no such file; name it with --config")
    try:
        return PyFileConfigLoader(file.name, str(file.resolve().parent)).load_config()
    except ConfigError:
        raise
    except Exception as error:
        # The file is a program of the site's and can fail in any way.
        raise ConfigError(f"{file} fails: {type(error).__name__}: {error}") from error


def hub_of(config: Config) -> Any:
    """Return a JupyterHub application with these settings that has done nothing yet."""
    return JupyterHub(config=config)
