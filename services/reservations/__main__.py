"""``python -m carme_hub.services.reservations --config jupyterhub_config.py``: what the hub starts."""

from carme_hub.services.reservations.app import main

if __name__ == "__main__":
    main()
