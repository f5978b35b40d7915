"""``carme-hub idle``: rules on idle sessions, tried before they are in force, and what they have given back."""
