"""Network namespaces: the bridge, its veth pair, its routes, its capture rules and its listeners.

netlink.py     messages to the kernel, encoded and sent in batches (pure encoding, one send)
rtnetlink.py   links, addresses, routes, rules
nftables.py    the capture and refusal rules
kernel.py      the few system calls that Python lacks
bridge.py      a bridge and a sandbox namespace, joined and ready
listeners.py   the sockets in the bridge that the broker will serve
handoff.py     giving those sockets to the broker over a unix socket

Imports nothing of ours. Needs only a user namespace of its own, never real root.
"""
