<<<<<<< HEAD
"""A vLLM-compatible engine without weights, timed by a published model."""
=======
"""A vLLM-compatible engine without weights: real prefix caching and events, modelled time."""
>>>>>>> sim
