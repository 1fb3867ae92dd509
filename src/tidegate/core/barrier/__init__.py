"""What happens at a subtask: barriers enter, align, overtake, are recorded and leave."""
