"""Places that are reached by running a program: containers, other hosts, isolated views of this machine.

Nothing is installed in them and no port is opened. `backend` is the contract of one kind of place; everything else here
is written once, for all of them.
"""
