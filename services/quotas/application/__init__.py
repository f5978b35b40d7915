"""What the quotas service does, whoever asks."""
