/* Strip: plain text out of terminal output. */
#include "py_core.h"

#include "swx_strip.h"

typedef struct {
    PyObject_HEAD
    swx_strip state;
} strip_object;

/* The filter's answer to some input; without any, to its end. */
static PyObject *filtered(strip_object *self, const char *data, Py_ssize_t size)
{
    uint8_t *out = malloc((size_t)size + SWX_STRIP_HELD);
    if (!out) {
        return PyErr_NoMemory();
    }
    size_t out_size = data ? swx_strip_feed(&self->state, (const uint8_t *)data, (size_t)size, out)
                           : swx_strip_finish(&self->state, out);
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)out, (Py_ssize_t)out_size);
    free(out);
    return bytes;
}

static PyObject *strip_feed(PyObject *object, PyObject *bytes)
{
    char *data;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(bytes, &data, &size) < 0) {
        return NULL;
    }
    return filtered((strip_object *)object, data, size);
}

static PyObject *strip_finish(PyObject *object, PyObject *Py_UNUSED(unused))
{
    return filtered((strip_object *)object, NULL, 0);
}

static PyMethodDef strip_methods[] = {
    { "feed", strip_feed, METH_O, "feed($self, data, /)\n--\n\n" },
    { "finish", strip_finish, METH_NOARGS, "finish($self, /)\n--\n\n" },
    { NULL, NULL, 0, NULL },
};

PyType_Spec swx_py_strip_spec = SWX_PY_SPEC("Strip", strip_object, 0, { Py_tp_doc, "Strip()\n--\n\n" },
                                            { Py_tp_dealloc, swx_py_deallocate }, { Py_tp_methods, strip_methods });
