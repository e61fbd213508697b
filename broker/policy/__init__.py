"""Pure decisions: this package does no I/O, reads no clock and never logs."""
