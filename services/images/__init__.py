"""The images service: the catalogue of a site's images, their offers, retirement, and the nodes' copies."""
