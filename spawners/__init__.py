"""How a click becomes a server: spawners, their form and their progress."""
