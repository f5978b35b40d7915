"""One extension of each kind for Carme Hub."""
