"""The measuring core of the suite, which also runs in interpreters that have no package."""
