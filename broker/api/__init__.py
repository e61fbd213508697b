"""HTTP/JSON on a unix socket, served from a table of routes: what the APIs of both daemons share.

Nothing here knows a grant or a sandbox. `routes` says what there is, `openapi` writes it down, `decoding` reads what
was sent, `server` answers, `faults` are the refusals that any request can meet.
"""
