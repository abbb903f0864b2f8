"""Floor 2: the workers behind the gateway: their state, the connections to them, and engines of our own."""
