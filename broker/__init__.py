"""The broker: decides on, dials and records every request a sandbox makes.

policy/   pure decisions: names, addresses, rules, grants
wire/     pure parsers and writers: ClientHello, HTTP/1.1 heads and bodies, DNS, problem documents
gateway/  the data path: capture, splice, inspect, dial, resolve
audit/    the log, its chain, its index
control/  the control and attach sockets
review/   the page for people who read the log
"""
