"""How a training scales: measured by running it, as a curve, in words and as a picture."""
