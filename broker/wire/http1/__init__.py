"""HTTP/1.1 without I/O: read strictly, judge elsewhere, write anew.

The way of a message: `heads` (on `fields` and `faults`) reads a head, `targets` says what a request asks for,
`rewrite` writes the head that is sent on, `framing` (with `trailers`) reads the body that follows, and `exchange` (on
`relay`, in `events`) pairs the requests of one client connection with their responses. `bodies` and `limits` are the
values that they share.
"""
