"""The HTTP surface: from a request's body to sequences, and from their tokens to bytes."""
