/* py_command.h: what is known about a command's text, for Python. */
#ifndef SWX_PY_COMMAND_H
#define SWX_PY_COMMAND_H

#include <Python.h>

/* Adds scan, quote and the SCAN_* constants to a module.  0, or -1 with an exception set. */
int swx_py_command_init(PyObject *module);

#endif
