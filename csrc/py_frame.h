/* py_frame.h: frames for Python, and what its two types share. */
#ifndef SWX_PY_FRAME_H
#define SWX_PY_FRAME_H

#include "py_core.h"

typedef struct {
    uint32_t max_frame; /* bytes of payload */
    uint32_t max_depth; /* lists and dicts inside each other */
    uint32_t max_items; /* values in a frame: the outermost, each member, each key, each container */
} swx_py_frame_limits;

/* How an instance of both begins. */
typedef struct {
    PyObject_HEAD
    swx_py_frame_limits limits;
} swx_py_frame_object;

#define SWX_PY_TOO_DEEP "the value is nested deeper than max_depth"
#define SWX_PY_TOO_MANY "the value has more than max_items items"
#define SWX_PY_WRONG_KEY "a map key is not a str"

/* The tp_new of both, whose arguments are the limits. */
PyObject *swx_py_frame_new(PyTypeObject *type, PyObject *args, PyObject *kwargs);

/* Raises FrameError.  type: one of these.  position: the byte at fault, in the stream or in the payload. */
void swx_py_frame_raise(PyTypeObject *type, const char *text, size_t position);

#endif
