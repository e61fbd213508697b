"""HTTP/2 messages without I/O: field lists read strictly and written anew (RFC 9113 §8).

The frames themselves are hyper-h2's business; what a request says, and what of it is sent on, is ours.
"""
