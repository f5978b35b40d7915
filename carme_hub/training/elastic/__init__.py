"""Runs whose number of ranks changes while they train."""
