"""The version of this distribution, kept here and nowhere else.

`swerex_c.__version__` is another number: the version of the SWE-ReX API that the package implements.
"""

__version__ = "0.1.0"
