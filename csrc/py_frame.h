/* py_frame.h: the frame room for Python. */
#ifndef SWX_PY_FRAME_H
#define SWX_PY_FRAME_H

#include <Python.h>

/* Adds FrameError, FrameEncoder, FrameDecoder and msgpack_version (a str) to a module made by multi-phase init.
 * 0, or -1 with an exception set. */
int swx_py_frame_init(PyObject *module);

#endif
