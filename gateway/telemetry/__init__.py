"""What the gateway tells about itself: metrics, spans, access lines. None of it knows a prompt, a key or a tenant."""
