"""The review page: the audit log for people, in a process of its own that only reads.

access.py     who may read it: the token, the names it answers to, where a request comes from (pure)
token.py      the token: made at the start, or kept in a file
asking.py     the filters of an address (pure)
wording.py    times, amounts and requests as people read them (pure)
rendering.py  templates, every text of the log escaped twice over: for the eye and for HTML
reader.py     questions to the index, in a bounded set of threads, each for a bounded time
opening.py    the index for one question, without waiting for who else has it
pages.py      what each page shows
weighing.py   suggested rules, a replayed policy
bounded.py    an end for what a payload or a pasted text can make slow
signatures.py whether a checkpoint's signature fits
forms.py      a posted form, bounded
answers.py    statuses and header fields
connections.py one connection of a browser, bounded
live.py       streams that tell that something new came
server.py     requests in, pages out

Everything that it shows was chosen by a payload. It has no socket of the daemons, no key and no way to write.
"""
