"""Floor 1: tokens, blocks, the prefix index, and what is kept between requests."""
