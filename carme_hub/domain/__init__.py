"""Pure rules and values: no traits, no clock, no logging, no input or output."""
