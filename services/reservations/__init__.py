"""The reservations service: the calendar in which GPUs are booked."""
