"""How a run is shown in a notebook and on a terminal."""
