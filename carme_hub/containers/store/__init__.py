"""A site's image store: a folder that only root can write, with hardened images, each of which is its digest.

::

    STORE/NAME                    a link to the image that the name stands for
    STORE/.digests/sha256-HEX/    an image: its tree (or image.sqsh), image.json, image.yaml, image.files.gz
    STORE/.blobs/sha256/HEX       layers and manifests as registries have them, each once
    STORE/.names/NAME.json        what the name stands for, since when, from which tag, and what it stood for before
    STORE/.pins/sha256-HEX.json   why an image stays although no name stands for it

``add`` copies an image from a registry, a folder or a file (``skopeo``), unpacks it (``unpack``), hardens it, looks at
what is inside (``packages``), writes a listing of it and the recipe, and renames it to its digest; only then a name
leads to it. ``update`` resolves a tag again, ``check`` compares an image with its listing, ``collect`` removes what
nothing names any more.

An unprivileged account copies, unpacks and compiles foreign files, where bubblewrap works with everything else
read-only and without a network, in a folder that nobody else can enter. Archives are never mounted, so that the kernel
never parses a foreign file system. ``carme-hub image`` calls this.
"""

from .add import AddOptions, add_image
from .unpack import COMPILE, compile_python

__all__ = ["COMPILE", "AddOptions", "add_image", "compile_python"]
