"""Entry point: the hub runs ``python -m carme_hub.services.images --config jupyterhub_config.py``."""

import gc

from carme_hub.services import parent_process  # noqa: F401  the first of all: it looks who that is
from carme_hub.services.images.app import main

if __name__ == "__main__":
    # Imported objects stay: without this, each full collection traverses all of them while a request waits.
    gc.freeze()
    main()
