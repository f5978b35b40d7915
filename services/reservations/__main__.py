"""``python -m carme_hub.services.reservations --config jupyterhub_config.py``: what the hub starts."""

import gc

from carme_hub.services import parent_process  # noqa: F401  the first of all: it looks who that is
from carme_hub.services.reservations.app import main

if __name__ == "__main__":
    # What was imported stays: without this, each full collection looks through all of it, in the middle of an answer.
    gc.freeze()
    main()
