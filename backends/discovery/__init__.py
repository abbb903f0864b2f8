"""Where workers are found: one interface, and the sources that speak it."""
