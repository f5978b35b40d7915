"""What runs in each rank."""
