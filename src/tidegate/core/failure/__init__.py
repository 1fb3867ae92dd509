"""What a failure asks for: restart, wait, stop, tell people."""
