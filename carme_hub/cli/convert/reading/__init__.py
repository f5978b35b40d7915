"""Read configurations of other programs, without running anything of them."""
