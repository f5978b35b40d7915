"""Carme Hub's pages and REST handlers inside the hub."""
