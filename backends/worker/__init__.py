"""The in-repo torch worker: a paged KV pool, a scheduler with prefix caching, and an OpenAI-compatible server."""
