"""Quotas on GPU time and bookings, the policy that holds them, and the decisions on requests. Pure."""
