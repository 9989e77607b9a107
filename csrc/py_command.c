#include "py_command.h"

#include <string.h>

#include "swx_alloc.h"
#include "swx_command.h"

enum { LONG_TEXT = 64 * 1024 }; /* bytes from which on letting other threads run is worth its cost */

static const char *const VERDICTS[] = { [SWX_EMPTY] = "empty", [SWX_COMPLETE] = "complete", [SWX_UNSURE] = "unsure" };
static const char *const WAYS[] = {
    [SWX_DELIVERY_NONE] = "none",         [SWX_DELIVERY_PLAIN] = "plain",   [SWX_DELIVERY_GROUP] = "group",
    [SWX_DELIVERY_RAW] = "raw",           [SWX_DELIVERY_EVAL] = "eval",     [SWX_DELIVERY_TOGETHER] = "together",
    [SWX_DELIVERY_DOCUMENT] = "document", [SWX_DELIVERY_SOURCE] = "source", [SWX_DELIVERY_REFUSE] = "refuse"
};

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

/* Scans command; *bytes becomes a new reference to what was scanned. */
static int scan_object(PyObject *command, PyObject **bytes, swx_scan *scan)
{
    char *data;
    Py_ssize_t size;
    *bytes = to_bytes(command);
    if (!*bytes) {
        return -1;
    }
    if (PyBytes_AsStringAndSize(*bytes, &data, &size) < 0) {
        Py_CLEAR(*bytes);
        return -1;
    }
    if (size < LONG_TEXT) {
        swx_command_scan((const uint8_t *)data, (size_t)size, scan);
    } else {
        Py_BEGIN_ALLOW_THREADS
        swx_command_scan((const uint8_t *)data, (size_t)size, scan);
        Py_END_ALLOW_THREADS
    }
    return 0;
}

PyDoc_STRVAR(scan_doc, "scan(command, /)\n--\n\n"
                       "Whether `command` (str, or bytes) is a complete bash command by itself, and what it holds.\n\n"
                       "Returns (verdict, flags, body_start, body_size, longest, stop): verdict is 'empty', 'complete' "
                       "or 'unsure', flags are\n"
                       "SCAN_* bits, the others are bytes of the UTF-8 text. See swx_command.h.");

static PyObject *py_scan(PyObject *module, PyObject *command)
{
    PyObject *bytes;
    swx_scan scan;
    (void)module;
    if (scan_object(command, &bytes, &scan) < 0) {
        return NULL;
    }
    Py_DECREF(bytes);
    return Py_BuildValue("sInnnn", VERDICTS[scan.verdict], scan.flags, (Py_ssize_t)scan.body_start,
                         (Py_ssize_t)scan.body_size, (Py_ssize_t)scan.longest, (Py_ssize_t)scan.stop);
}

PyDoc_STRVAR(delivery_doc, "delivery(command, accepted=False, /)\n--\n\n"
                           "How `command` gets to a shell: 'none', 'plain', 'group', 'eval' or 'refuse'.\n\n"
                           "accepted: `bash -n` took it without a warning; matters for what scan() is unsure of.");

static PyObject *py_delivery(PyObject *module, PyObject *args)
{
    PyObject *command, *bytes;
    int accepted = 0;
    swx_scan scan;
    (void)module;
    if (!PyArg_ParseTuple(args, "O|p:delivery", &command, &accepted) || scan_object(command, &bytes, &scan) < 0) {
        return NULL;
    }
    Py_DECREF(bytes);
    return PyUnicode_FromString(WAYS[swx_command_delivery(&scan, accepted)]);
}

/* The way of that name; SWX_DELIVERY_REFUSE when nothing can be typed for it. */
static swx_delivery way_of(const char *name)
{
    for (int way = SWX_DELIVERY_PLAIN; way <= SWX_DELIVERY_SOURCE; way++) {
        if (strcmp(name, WAYS[way]) == 0) {
            return (swx_delivery)way;
        }
    }
    return SWX_DELIVERY_REFUSE;
}

PyDoc_STRVAR(quote_doc,
             "quote(way, command, /)\n--\n\n"
             "The bytes to type on a terminal for `command` (str, or bytes); way is 'plain', 'group' or 'eval'.\n\n"
             "Raises ValueError for a NUL byte or another way.");

static PyObject *py_quote(PyObject *module, PyObject *args)
{
    const char *name;
    char *data;
    Py_ssize_t size;
    PyObject *command, *bytes = NULL, *result = NULL;
    swx_status status;
    swx_buf out;
    (void)module;
    swx_buf_init(&out, SIZE_MAX / 2);
    if (!PyArg_ParseTuple(args, "sO:quote", &name, &command)) {
        return NULL;
    }
    bytes = to_bytes(command);
    if (!bytes || PyBytes_AsStringAndSize(bytes, &data, &size) < 0) {
        goto done;
    }
    swx_delivery way = way_of(name);
    Py_BEGIN_ALLOW_THREADS
    status = swx_command_encode(way, (const uint8_t *)data, (size_t)size, &out);
    Py_END_ALLOW_THREADS
    if (status == SWX_OK) {
        result = PyBytes_FromStringAndSize((const char *)out.data, (Py_ssize_t)out.size);
    } else if (status == SWX_EINVAL) {
        PyErr_SetString(PyExc_ValueError, way == SWX_DELIVERY_REFUSE ? "way is 'plain', 'group' or 'eval'"
                                                                     : "a command cannot hold a NUL byte");
    } else {
        PyErr_NoMemory();
    }
done:
    swx_buf_free(&out);
    Py_XDECREF(bytes);
    return result;
}

static PyMethodDef METHODS[] = {
    { "scan", py_scan, METH_O, scan_doc },
    { "delivery", py_delivery, METH_VARARGS, delivery_doc },
    { "quote", py_quote, METH_VARARGS, quote_doc },
    { NULL, NULL, 0, NULL },
};

int swx_py_command_init(PyObject *module)
{
    static const struct {
        const char *name;
        long value;
    } constants[] = {
        { "SCAN_MULTILINE", SWX_SCAN_MULTILINE },
        { "SCAN_CONTROL", SWX_SCAN_CONTROL },
        { "SCAN_NUL", SWX_SCAN_NUL },
        { "SCAN_LONG_LINE", SWX_SCAN_LONG_LINE },
        { "SCAN_BACKSLASH_END", SWX_SCAN_BACKSLASH_END },
        { "SCAN_PARSE_STATE", SWX_SCAN_PARSE_STATE },
        { "SCAN_EXEC", SWX_SCAN_EXEC },
        { "SCAN_STTY", SWX_SCAN_STTY },
        { "SCAN_PROMPT", SWX_SCAN_PROMPT },
        { "SCAN_BACKGROUND", SWX_SCAN_BACKGROUND },
        { "SCAN_EDITING", SWX_SCAN_EDITING },
    };
    for (size_t i = 0; i < SWX_COUNT(constants); i++) {
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) < 0) {
            return -1;
        }
    }
    return PyModule_AddFunctions(module, METHODS);
}
