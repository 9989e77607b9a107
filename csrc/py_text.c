/* Output as a str. */
#include <stdio.h>
#include <string.h>

#include "py_core.h"
#include "swx_strip.h"

/* The contents of a buffer with the note, plain; `out` has room for both.  Returns the size. */
static size_t write_plain(const swx_buf *buf, const char *note, bool crlf, uint8_t *out)
{
    uint8_t *end = out;
    swx_span spans[3];
    swx_buf_spans(buf, spans);
    for (size_t i = 0; i < SWX_COUNT(spans); i++) {
        if (spans[i].size) {
            end = mempcpy(end, spans[i].bytes, spans[i].size);
        }
        if (i == 0) {
            end = mempcpy(end, note, strlen(note));
        }
    }
    size_t size = (size_t)(end - out);
    return crlf || swx_strip_needed(out, size) ? swx_strip_whole(out, size, crlf) : size;
}

static PyObject *decode(const uint8_t *bytes, size_t size)
{
    return PyUnicode_DecodeUTF8(size ? (const char *)bytes : "", (Py_ssize_t)size, "backslashreplace");
}

PyObject *swx_py_text(const swx_buf *buf, bool crlf)
{
    char note[80] = "";
    if (!crlf && !swx_buf_dropped(buf) && !swx_strip_needed(buf->data, buf->size)) {
        return decode(buf->data, buf->size);
    }
    if (swx_buf_dropped(buf)) {
        snprintf(note, sizeof(note), SWX_DROPPED_NOTE, (unsigned long long)swx_buf_dropped(buf));
    }
    uint8_t *text = malloc(buf->size + strlen(note));
    if (!text) {
        return PyErr_NoMemory();
    }
    size_t size;
    Py_BEGIN_ALLOW_THREADS
    size = write_plain(buf, note, crlf, text);
    Py_END_ALLOW_THREADS
    PyObject *str = decode(text, size);
    free(text);
    return str;
}
