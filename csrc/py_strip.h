/* py_strip.h: the strip room for Python. */
#ifndef SWX_PY_STRIP_H
#define SWX_PY_STRIP_H

#include <Python.h>

/* Adds Strip to a module made by multi-phase init.  0, or -1 with an exception set. */
int swx_py_strip_init(PyObject *module);

#endif
