"""What jobs use of what they have: minutes, their sums, and what they say."""
