/* Output as a str. */
#include <stdio.h>
#include <string.h>

#include "py_core.h"
#include "swx_alloc.h"
#include "swx_strip.h"

/* What stands for dropped bytes; its length, 0 where none were. */
static size_t note_of(const swx_buf *buf, char note[80])
{
    static const char text[] = SWX_DROPPED_NOTE;
    return swx_buf_dropped(buf) ? (size_t)snprintf(note, 80, text, (unsigned long long)swx_buf_dropped(buf)) : 0;
}

/* The contents of a buffer with the note, plain; `out` has room for both.  Returns the size. */
static size_t write_plain(const swx_buf *buf, bool crlf, uint8_t *out)
{
    char note[80];
    size_t size = 0, note_size = note_of(buf, note);
    swx_span spans[3];
    swx_buf_spans(buf, spans);
    for (size_t i = 0; i < SWX_COUNT(spans); i++) {
        if (spans[i].size) {
            memcpy(out + size, spans[i].bytes, spans[i].size);
        }
        size += spans[i].size;
        if (i == 0 && note_size) {
            memcpy(out + size, note, note_size);
            size += note_size;
        }
    }
    return crlf || swx_strip_needed(out, size) ? swx_strip_whole(out, size, crlf) : size;
}

static PyObject *decode(const uint8_t *bytes, size_t size)
{
    return PyUnicode_DecodeUTF8(size ? (const char *)bytes : "", (Py_ssize_t)size, "backslashreplace");
}

PyObject *swx_py_text(const swx_buf *buf, bool crlf)
{
    char note[80];
    if (!crlf && !swx_buf_dropped(buf) && !swx_strip_needed(buf->data, buf->size)) {
        return decode(buf->data, buf->size);
    }
    uint8_t *text = swx_malloc(buf->size + note_of(buf, note));
    if (!text) {
        return PyErr_NoMemory();
    }
    size_t size;
    Py_BEGIN_ALLOW_THREADS
    size = write_plain(buf, crlf, text);
    Py_END_ALLOW_THREADS
    PyObject *str = decode(text, size);
    swx_free(text);
    return str;
}
