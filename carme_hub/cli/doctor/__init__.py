"""``carme-hub doctor``: each file looks at one subject, says what is unsafe there, and the line that mends it."""
