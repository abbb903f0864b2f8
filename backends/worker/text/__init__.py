"""Token ids to text as they come, and what a request says of sampling."""
