"""The front door: the public API and the command line."""

__version__ = "0.1.0"
