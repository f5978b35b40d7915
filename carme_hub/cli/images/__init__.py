"""``carme-hub image``: the site's image store from a terminal."""
