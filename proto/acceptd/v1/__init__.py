"""Generated messages and stubs of the protocol `acceptd.v1`."""
