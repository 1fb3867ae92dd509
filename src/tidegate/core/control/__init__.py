"""Control signals, and the one order of all barriers."""
