"""The command line, `acceptd`."""
