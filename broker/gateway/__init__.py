"""The data path: what happens to a connection between the sandbox's socket and the upstream's.

reactor.py   one edge-triggered epoll inside the asyncio loop; deadlines; the turn that flushes the log
session.py   one sandbox: its policy and grant, its names, its connections, its listeners
capture.py   accepting, the first bytes, choosing the plane
tls.py       the splice plane's decision: ClientHello, names that agree, verdict
relay.py     joining two streams unseen
http.py      the HTTP/1.1 plane: each request judged, what was judged is sent
names.py     the name server's sockets
resolve.py   names to addresses, only after an allow
dial.py      classify all answers, pin one, connect to exactly that one
links.py     the addresses and prefixes of the broker's own host
records.py   audit records of what the data path does
attach.py    sessions that a runner hands over, and their lease
serve.py     the broker as a process
"""
