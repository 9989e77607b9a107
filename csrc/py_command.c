/* What is known about a command's text. */
#include "py_core.h"

#include "swx_command.h"

static const char *const VERDICTS[] = { [SWX_EMPTY] = "empty", [SWX_COMPLETE] = "complete", [SWX_UNSURE] = "unsure" };

/* A new reference to the bytes of a str (UTF-8, surrogateescape) or bytes object. */
static PyObject *to_bytes(PyObject *command)
{
    if (PyBytes_Check(command)) {
        return Py_NewRef(command);
    }
    if (PyUnicode_Check(command)) {
        return PyUnicode_AsEncodedString(command, "utf-8", "surrogateescape");
    }
    PyErr_SetString(PyExc_TypeError, "a command is str or bytes");
    return NULL;
}

static PyObject *py_scan(PyObject *module, PyObject *command)
{
    char *data;
    Py_ssize_t size;
    swx_scan scan;
    PyObject *bytes = to_bytes(command);
    (void)module;
    if (!bytes || PyBytes_AsStringAndSize(bytes, &data, &size) < 0) {
        Py_XDECREF(bytes);
        return NULL;
    }
    swx_command_scan((const uint8_t *)data, (size_t)size, &scan);
    Py_DECREF(bytes);
    return Py_BuildValue("sI", VERDICTS[scan.verdict], scan.flags);
}

static PyObject *py_quote(PyObject *module, PyObject *command)
{
    char *data;
    Py_ssize_t size;
    PyObject *result = NULL, *bytes = to_bytes(command);
    swx_buf out;
    (void)module;
    swx_buf_init(&out, SIZE_MAX / 2);
    if (bytes && PyBytes_AsStringAndSize(bytes, &data, &size) == 0) {
        swx_status status = swx_command_encode(SWX_DELIVERY_EVAL, (const uint8_t *)data, (size_t)size, &out);
        if (status == SWX_OK) {
            result = PyBytes_FromStringAndSize((const char *)out.data, (Py_ssize_t)out.size);
        } else if (status == SWX_EINVAL) {
            PyErr_SetString(PyExc_ValueError, "a command cannot hold a NUL byte");
        } else {
            PyErr_NoMemory();
        }
    }
    swx_buf_free(&out);
    Py_XDECREF(bytes);
    return result;
}

static PyMethodDef METHODS[] = {
    { "scan", py_scan, METH_O, "scan(command, /)\n--\n\n" },
    { "quote", py_quote, METH_O, "quote(command, /)\n--\n\n" },
    { NULL, NULL, 0, NULL },
};

int swx_py_command_init(PyObject *module)
{
    bool fine = PyModule_AddIntConstant(module, "SCAN_BACKSLASH_END", SWX_SCAN_BACKSLASH_END) == 0 &&
                PyModule_AddIntConstant(module, "SCAN_EXEC", SWX_SCAN_EXEC) == 0 &&
                PyModule_AddIntConstant(module, "SCAN_PROMPT", SWX_SCAN_PROMPT) == 0;
    return fine ? PyModule_AddFunctions(module, METHODS) : -1;
}
