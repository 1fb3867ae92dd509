"""Measurements that anybody can repeat: `tidegate bench`. Nothing here is needed to run a pipeline."""
