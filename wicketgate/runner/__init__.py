"""The runner as a daemon: its configuration, its API, its client.

schema.py      the documents of the API: *call*, which a model may fill, and *authority*, which only the server may
routes.py      the one table of operations; openapi.py writes the OpenAPI document from it
faults.py      what is refused, with which status
app.py         HTTP: connections, decoding, encoding, streams
operations.py  what each operation does, in terms of sandbox/
admission.py   from documents to values: the only place where a request becomes a command and rights
start.py       the processes, in the only order that works; gate.py lets peers in
prepared.py    what is read and loaded before any right is given up; place.py has the lock and the socket
serving.py     the runner itself: puts it together and serves
client.py      the typed client, `wicketgate.Runner`
"""
