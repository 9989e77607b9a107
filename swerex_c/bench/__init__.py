"""`swerex-c bench`: how fast sessions are on this machine, beside what limits them, in about a minute.

`rows` says what is measured; `engines` (`pty`, `programs`, `runtime`) do the work; `worker` is the process in which one
of them is timed; `run` gives each its turns and keeps the budget; `figures` and `measured` do the numbers; `report`
shows them; `command` reads the options. What a worker imports has to run in the interpreter of another engine, which
lacks what this package requires: the standard library, and in `runtime` what is measured.
"""
