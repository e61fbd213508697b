"""Pure parsers and writers of what crosses the wire. Nothing here touches a socket, a file or a clock."""
