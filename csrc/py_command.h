/* py_command.h: the syntax room for Python. */
#ifndef SWX_PY_SYNTAX_H
#define SWX_PY_SYNTAX_H

#include <Python.h>

/* Adds scan, delivery, quote and the SCAN_* constants to a module.  0, or -1 with an exception set. */
int swx_py_command_init(PyObject *module);

#endif
