"""GPU time of reservations: held when booked, handed to sessions in it, settled at its end."""
