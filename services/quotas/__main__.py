"""``python -m carme_hub.services.quotas --config jupyterhub_config.py``: what the hub starts."""

from carme_hub.services import parent_process  # noqa: F401  first, since it reads the parent's id
from carme_hub.services.quotas.app import main

if __name__ == "__main__":
    main()
