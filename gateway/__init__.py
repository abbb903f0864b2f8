"""Floor 3: the program: configuration, data plane, pipeline, command line."""

__version__ = "0.1.0"
