"""``python -m carme_hub.cli``: the same as the ``carme-hub`` command."""

from carme_hub.cli.app import main

main()
