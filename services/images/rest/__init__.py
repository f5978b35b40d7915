"""REST of images, and where nodes say what they have."""
