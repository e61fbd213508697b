"""How others talk to the broker: the messages of the attach socket, the control API, and their clients."""
