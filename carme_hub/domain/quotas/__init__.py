"""Rules on GPU time and bookings, the policy that holds them, and what they decide. Pure."""
