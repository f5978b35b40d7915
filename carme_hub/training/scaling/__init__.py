"""How a training scales, measured."""
