"""The audit log: what was asked, what was decided, by which rule, in which tool call.

records.py    the record as a value, its JSON form (pure)
encoding.py   the same form, put together from known parts (pure)
redaction.py  what is taken out of a record before it is written (pure)
escaping.py   bounds and control characters (pure)
chain.py      the hash chain and its checkpoints (pure)
verifier.py   what was done to a log (pure)
location.py   where the log lives (pure)
directory.py  the log's directory: owner, modes, no links
ownership.py  whose the log is, for root who asks about it
segments.py   the files of one log: names, creation
repair.py     what a dead writer left is finished
signing.py    the Ed25519 key that signs checkpoints
outage.py     a time without a log
settings.py   how a log is kept, what it counts
writer.py     one file being written: whole batches or nothing
log.py        the log as its callers see it
keys.py       hosts, authorities and times in the form that records are found by (pure)
index.py      an SQLite index over all logs, thrown away and rebuilt at will
questions.py  search, summary
overview.py   the newest sessions, the hosts that were denied of late
totals.py     what came out in a time, added up over all sessions
timeline.py   what one session did, each decision with how it ended
neighbours.py one record with the lines around it
checking.py   verification of a whole directory
following.py  reading what is appended, as it is appended
export.py     JSON Lines, CSV and OCSF (pure)

The JSON Lines files are the truth. Nothing else in the directory is needed to read or to verify them.

Lines of one log are hash-chained; every process that writes has a log of its own, so no lock is shared between
processes, and a reader merges logs by time.
"""
