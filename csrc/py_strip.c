/* Strip: plain text out of terminal output. */
#include "py_core.h"

#include "swx_strip.h"

typedef struct {
    PyObject_HEAD
    swx_strip state;
} strip_object;

static PyObject *strip_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = { NULL };
    PyObject *object = PyArg_ParseTupleAndKeywords(args, kwargs, ":Strip", names) ? swx_py_allocate(type) : NULL;
    if (object) {
        swx_strip_init(&((strip_object *)object)->state);
    }
    return object;
}

/* The filter's answer to some input, or to its end. */
static PyObject *filtered(strip_object *self, const char *data, Py_ssize_t size, int finish)
{
    size_t out_size;
    uint8_t *out = malloc((size_t)size + SWX_STRIP_HELD);
    if (!out) {
        return PyErr_NoMemory();
    }
    if (finish) {
        swx_strip_finish(&self->state, out, &out_size);
    } else {
        swx_strip_feed(&self->state, (const uint8_t *)data, (size_t)size, out, &out_size);
    }
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
    return filtered((strip_object *)object, data, size, 0);
}

static PyObject *strip_finish(PyObject *object, PyObject *Py_UNUSED(unused))
{
    return filtered((strip_object *)object, NULL, 0, 1);
}

static PyMethodDef strip_methods[] = {
    { "feed", strip_feed, METH_O, "feed($self, data, /)\n--\n\n" },
    { "finish", strip_finish, METH_NOARGS, "finish($self, /)\n--\n\n" },
    { NULL, NULL, 0, NULL },
};

PyType_Spec swx_py_strip_spec =
    SWX_PY_SPEC("Strip", strip_object, 0, { Py_tp_doc, "Strip()\n--\n\n" }, { Py_tp_new, strip_new },
                { Py_tp_dealloc, swx_py_deallocate }, { Py_tp_methods, strip_methods });
