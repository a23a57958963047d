"""The version of this checkout, installed or not."""

__version__ = "0.1.0"
