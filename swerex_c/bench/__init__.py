"""Measure sessions beside a bare terminal, `subprocess.run`, pexpect, ptyprocess and SWE-ReX.

The command `swerex-c bench` and the source tree's `benchmarks/` share this core: `measure` runs rows in interleaved
rounds, with a `worker` process for each engine; `engines` drives what is measured; `rows` defines what is asked;
`report` shows the results; `machine` describes the machine; `command` handles the options.

`engines` and `worker` need only the standard library, because they also run in the interpreter of another engine.
"""
