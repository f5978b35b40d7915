"""GPU time of reservations."""
