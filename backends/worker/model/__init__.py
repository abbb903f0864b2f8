"""Models in torch: configuration, weights, the decoder over a paged KV pool, sampling, memory."""
