"""KV that outlives the pool: cut into chunks, kept in stores, restored where that is cheaper."""
