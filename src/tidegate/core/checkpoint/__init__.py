"""The coordinator: attempts, leadership, manifests, publishing. Events in, effects out."""
