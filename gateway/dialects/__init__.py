"""The ways in which clients speak to us: how each tells errors, ends a stream and counts tokens."""
