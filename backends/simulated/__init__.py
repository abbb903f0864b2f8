"""A vLLM-compatible engine without weights, timed by a published model."""
