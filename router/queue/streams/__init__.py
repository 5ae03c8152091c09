"""Streams: answers on their way from the worker that writes them to whoever reads them, through Redis.

A decision that somebody reads along has three keys: that it is wanted, how many runs have begun to write, and the
stream. An entry has the id <attempt>-<number>: attempts are the runs of the arm, one after another where a worker has
died, and numbers are without a gap, so that a reader sees what it has missed. Every entry has a mark, made with a
secret of the database: an entry without it ends the stream and is never shown. Nothing here is needed for the answer:
the outcome in SQL has it.
"""
