"""Use cases of images: the catalogue of a site's stores, whom an image is offered to, how its sessions start."""
