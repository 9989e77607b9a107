/* Output as a str, and as bytes. */
#include "py_core.h"
#include "swx_strip.h"

static PyObject *decode(const uint8_t *bytes, size_t size)
{
    return PyUnicode_DecodeUTF8(size ? (const char *)bytes : "", (Py_ssize_t)size, "backslashreplace");
}

PyObject *swx_py_text(const swx_buf *buf, bool crlf)
{
    char note[SWX_NOTE_SIZE];
    size_t size = buf->size + swx_buf_note(swx_buf_dropped(buf), note);
    if (!crlf && size == buf->size && !swx_strip_needed(buf->data, size)) {
        return decode(buf->data, size);
    }
    uint8_t *text = malloc(size);
    if (!text) {
        return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS
    swx_buf_copy(buf, note, text);
    size = swx_strip_whole(text, size, crlf);
    Py_END_ALLOW_THREADS
    PyObject *str = decode(text, size);
    free(text);
    return str;
}

PyObject *swx_py_bytes(const swx_buf *buf)
{
    char note[SWX_NOTE_SIZE];
    size_t size = buf->size + swx_buf_note(swx_buf_dropped(buf), note);
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (bytes) {
        swx_buf_copy(buf, note, (uint8_t *)PyBytes_AsString(bytes));
    }
    return bytes;
}
