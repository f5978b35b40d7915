"""What a session's Jupyter server answers about runs: for their display in notebooks, and for the page *Runs*."""
