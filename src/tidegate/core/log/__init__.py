"""The job's log, the only truth: its entries, what they add up to, what to restore, what to delete, who owns a sink."""
