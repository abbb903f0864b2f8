"""A vLLM-compatible engine without weights: real prefix caching and events, modelled time."""
