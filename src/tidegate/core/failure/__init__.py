"""What a failure asks for: restart, wait, give up, tell people."""
