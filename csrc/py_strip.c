#include "py_strip.h"

#include <string.h>

#include "swx_alloc.h"
#include "swx_strip.h"

PyDoc_STRVAR(strip_doc,
"strip(data, crlf=False, /)\n--\n\n"
"The bytes `data` without terminal control sequences; with crlf, CR LF becomes LF. See swx_strip.h.");

static PyObject *py_strip(PyObject *module, PyObject *args)
{
    char *data;
    Py_ssize_t size;
    PyObject *bytes, *result;
    uint8_t *copy;
    int crlf = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "O|p:strip", &bytes, &crlf) || PyBytes_AsStringAndSize(bytes, &data, &size) < 0) {
        return NULL;
    }
    copy = swx_malloc((size_t)size);
    if (!copy) {
        return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS
    memcpy(copy, data, (size_t)size);
    size = (Py_ssize_t)swx_strip_whole(copy, (size_t)size, crlf);
    Py_END_ALLOW_THREADS
    result = PyBytes_FromStringAndSize((const char *)copy, size);
    swx_free(copy);
    return result;
}

static PyMethodDef METHODS[] = {
    { "strip", py_strip, METH_VARARGS, strip_doc },
    { NULL, NULL, 0, NULL },
};

int swx_py_strip_init(PyObject *module)
{
    return PyModule_AddFunctions(module, METHODS);
}
