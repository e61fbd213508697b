"""`wicketgate doctor`: whether sandboxes can be built here and hold, and what forbids them.

`examination` puts it together. It asks `surroundings` (programs, clock, disk, groups, broker), `probes` (each step of
a sandbox by itself, in a child) and `wholes` (a whole sandbox, in which `inside` looks for what it must not find).
`facts` are read from the host; `causes` decides by them, without any I/O, which layer refused a step and what cures it;
`findings` is how all of it is told.
"""
