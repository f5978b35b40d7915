"""Entry point: the hub runs ``python -m carme_hub.services.folders --config jupyterhub_config.py``."""

from carme_hub.services import parent_process  # noqa: F401  first, since it reads the parent's id
from carme_hub.services.folders.app import main

if __name__ == "__main__":
    main()
