"""The activity service: what jobs use of what they have."""
