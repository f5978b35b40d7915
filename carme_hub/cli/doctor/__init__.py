"""``carme-hub doctor``: each file checks one subject, and yields what is unsafe there with the line that mends it."""
