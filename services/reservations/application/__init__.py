"""What the reservations service does, whoever asks."""
