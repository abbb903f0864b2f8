"""What the HTTP surfaces of our own engines have in common: errors, bodies, events, pages, as vLLM has them."""
