"""The display of a run in a notebook and on a terminal."""
