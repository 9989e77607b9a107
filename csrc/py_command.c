/* What is known about a command's text. */
#include "py_core.h"

#include "swx_command.h"

static const char *const VERDICTS[] = { [SWX_EMPTY] = "empty", [SWX_COMPLETE] = "complete", [SWX_UNSURE] = "unsure" };

const char *swx_py_command_bytes(PyObject *command, Py_ssize_t *size, PyObject **keep)
{
    char *data = NULL;
    *keep = PyBytes_Check(command) ? Py_NewRef(command) : NULL;
    if (!*keep) {
        const char *text = PyUnicode_AsUTF8AndSize(command, size);
        if (text || !PyUnicode_Check(command)) {
            return text;
        }
        PyErr_Clear();
        *keep = PyUnicode_AsEncodedString(command, "utf-8", "surrogateescape");
    }
    if (*keep && PyBytes_AsStringAndSize(*keep, &data, size) < 0) {
        Py_CLEAR(*keep);
    }
    return data;
}

PyObject *swx_py_scan(PyObject *Py_UNUSED(module), PyObject *command)
{
    Py_ssize_t size;
    swx_scan scan;
    PyObject *keep;
    const char *text = swx_py_command_bytes(command, &size, &keep);
    if (!text) {
        return NULL;
    }
    swx_command_scan((const uint8_t *)text, (size_t)size, &scan);
    Py_XDECREF(keep);
    return Py_BuildValue("sI", VERDICTS[scan.verdict], scan.flags);
}

PyObject *swx_py_quote(PyObject *Py_UNUSED(module), PyObject *command)
{
    Py_ssize_t size;
    PyObject *keep, *result = NULL;
    const char *text = swx_py_command_bytes(command, &size, &keep);
    swx_buf out;
    if (!text) {
        return NULL;
    }
    swx_buf_init(&out, SIZE_MAX / 2);
    swx_status status = swx_command_encode(SWX_DELIVERY_EVAL, (const uint8_t *)text, (size_t)size, &out);
    if (status == SWX_OK) {
        result = PyBytes_FromStringAndSize((const char *)out.data, (Py_ssize_t)out.size);
    } else {
        swx_py_raise(&(swx_error){ .status = status, .text = "a command cannot hold a NUL byte" });
    }
    swx_buf_free(&out);
    Py_XDECREF(keep);
    return result;
}
