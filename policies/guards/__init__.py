"""Whether two questions that look alike mean the same, judged without a model: see `check.py`."""
