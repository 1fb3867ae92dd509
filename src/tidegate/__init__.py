"""tidegate."""
