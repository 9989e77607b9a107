"""Read by every Python of the run under ASan, before anything else.

The preloaded runtime is for the interpreter. The programs that sessions start are other people's: they must see the
environment that they would see without it. Python programs that tests start get the runtime again from a small script.
"""

import os
import sys

os.environ.pop("LD_PRELOAD", None)
os.environ.pop("PYTHONMALLOC", None)
sys.executable = os.environ.get("SWX_ASAN_PYTHON", sys.executable)
