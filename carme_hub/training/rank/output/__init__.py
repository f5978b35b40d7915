"""How a rank runs a user's file, and what its code displays beside text."""
