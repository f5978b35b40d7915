"""Data of sessions on nodes: the site's settings, what nodes report, and what users decide."""
