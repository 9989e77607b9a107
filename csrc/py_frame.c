#include "py_frame.h"

enum { MAX_DEPTH = 128 /* the most that max_depth can be */ };

void swx_py_frame_raise(PyTypeObject *type, const char *text, size_t position)
{
    PyErr_Format(swx_py_state_of(type)->frame_error, "%s (at byte %zu)", text, position);
}

/* One limit of a constructor: object (or NULL for the default) to *limit.  0, or -1 with ValueError set. */
static int read_limit(PyObject *object, const char *name, uint32_t most, uint32_t *limit)
{
    int overflow;
    long long value = object ? PyLong_AsLongLongAndOverflow(object, &overflow) : 0;
    if (!object || (value == -1 && PyErr_Occurred())) {
        return object ? -1 : 0;
    }
    if (overflow || value < 1 || value > (long long)most) {
        PyErr_Format(PyExc_ValueError, "%s must be from 1 to %u", name, (unsigned)most);
        return -1;
    }
    *limit = (uint32_t)value;
    return 0;
}

PyObject *swx_py_frame_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = { "max_frame", "max_depth", "max_items", NULL };
    PyObject *frame = NULL, *depth = NULL, *items = NULL;
    swx_py_frame_limits limits = { .max_frame = 64 << 20, .max_depth = 32, .max_items = 1000000 };
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$OOO", names, &frame, &depth, &items) ||
        read_limit(frame, names[0], UINT32_MAX, &limits.max_frame) < 0 ||
        read_limit(depth, names[1], MAX_DEPTH, &limits.max_depth) < 0 ||
        read_limit(items, names[2], UINT32_MAX, &limits.max_items) < 0) {
        return NULL;
    }
    PyObject *object = PyType_GenericAlloc(type, 0);
    if (object) {
        ((swx_py_frame_object *)object)->limits = limits;
    }
    return object;
}
