"""Floor 0: pure decisions. Synchronous, no I/O, no clock, no randomness of their own."""
