"""The tests. `tests/engine/test_output.py` is for `swerex_c/engine/output.py`; helpers are in `tests/support`.

`tests/c` holds those of the core in C, `tests/data` the files that tests read. `tests/providers` and
`tests/compatibility` need real engines, hosts or the libraries of extras, and are not part of `.ci/test`.
"""
