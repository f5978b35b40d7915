"""Acts on jobs as their owners, and reads their files as them."""
