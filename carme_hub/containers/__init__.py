"""Container runtimes: each renders a typed request to a command line. Also images, their store and their checks."""
