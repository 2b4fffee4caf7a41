"""What outlives the process: journal, snapshots and history in SQLite, and how they come back."""
