"""``python -m carme_hub.training.templates FOLDER``: write the templates' notebooks."""

from carme_hub.training.templates import main

if __name__ == "__main__":
    main()
