/* py_frame.h: frames for Python, and what its two types share. */
#ifndef SWX_PY_FRAME_H
#define SWX_PY_FRAME_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

typedef struct {
    uint32_t max_frame; /* bytes of payload */
    uint32_t max_depth; /* lists and dicts inside each other */
    uint32_t max_items; /* values in a frame: the outermost, each member, each key, each container */
} swx_py_frame_limits;

#define SWX_PY_TOO_DEEP "the value is nested deeper than max_depth"
#define SWX_PY_TOO_MANY "the value has more than max_items items"
#define SWX_PY_WRONG_KEY "a map key is not a str"

/* Reads the limits from a constructor's arguments.  0, or -1 with an exception set. */
int swx_py_frame_read_limits(PyObject *args, PyObject *kwargs, swx_py_frame_limits *limits);

/* Raises FrameError.  type: one of these.  position: the byte at fault, in the stream or in the payload. */
void swx_py_frame_raise(PyTypeObject *type, const char *text, size_t position);

#endif
