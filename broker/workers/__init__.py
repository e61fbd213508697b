"""The worker processes of a broker daemon: each serves whole sessions, the daemon decides which."""
