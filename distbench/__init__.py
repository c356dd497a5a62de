"""distbench: find, and prove, what a large LLM deployment can carry."""

__version__ = "0.1.0"
