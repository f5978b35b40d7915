"""Sessions that maintenance affects, and the alternatives of their users."""
