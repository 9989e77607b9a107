"""Session benchmark: the command `swerex-c bench` and its measuring core.

The core, which the source tree's `benchmarks/` use too: `engine` is what is measured, `operations` measure it in the
process of `worker`, `process` starts and asks such a process, `results` are turns, rows and their statistics, `report`
prints them, `machine` describes the machine and prepares its files and variables. Engines: `pty`, `programs`,
`runtime`. These modules import each other by relative names and need only the standard library, so that they also run
in the interpreter of another engine, and beside another version of this package.

The command: `rows` defines the measurements, `make` its engines, `run` schedules the turns within a time budget,
`summary` shows the results, `command` handles the options.
"""
