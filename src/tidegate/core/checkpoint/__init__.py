"""The coordinator: attempts, leadership, manifests, publishing. Facts in, orders out."""
