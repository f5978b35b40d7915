"""Reservations of GPUs: periods, recurrence, capacity, slots and conflicts. Pure."""
