"""GPU time of reservations: held when booked, taken over by sessions in them, settled at their end."""
