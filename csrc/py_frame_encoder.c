/* Packs Python objects straight into the output, by msgpack-c. */
#include <stddef.h>
#include <string.h>

#include <msgpack.h>

#include "py_frame.h"
#include "swx_frame.h"

/* A frame that is being written. */
typedef struct {
    PyTypeObject *type;
    swx_py_frame_limits limits;
    uint8_t *data; /* first, or its own memory */
    size_t size, capacity;
    uint32_t depth;
    uint64_t promised; /* values announced so far, the outermost included */
    uint8_t first[512];
} writer;

/* Bytes of the payload so far. */
static size_t payload_size(const writer *w) { return w->size - SWX_FRAME_HEADER; }

static int refuse(writer *w, const char *text)
{
    swx_py_frame_raise(w->type, text, payload_size(w));
    return -1;
}

/* Refuses a value that is named by its type. */
static int refuse_value(writer *w, PyObject *value, const char *why)
{
    PyObject *name = PyType_GetName(Py_TYPE(value));
    if (name) {
        PyErr_Format(swx_py_state_of(w->type)->frame_error, "a value of type %U %s (at byte %zu)", name, why,
                     payload_size(w));
    }
    Py_XDECREF(name);
    return -1;
}

/* Makes room for so many more bytes: 0, or -1 with an exception. */
static int grow(writer *w, size_t size)
{
    size_t capacity = 2 * (w->size + size);
    uint8_t *data = realloc(w->data == w->first ? NULL : w->data, capacity);
    if (!data) {
        PyErr_NoMemory();
        return -1;
    }
    if (w->data == w->first) {
        memcpy(data, w->first, w->size);
    }
    w->data = data;
    w->capacity = capacity;
    return 0;
}

/* Where msgpack-c's packer writes: 0, or -1 with an exception. */
static inline int append(void *to, const char *bytes, size_t size)
{
    writer *w = to;
    if (size > w->limits.max_frame - payload_size(w)) {
        return refuse(w, "the frame is longer than max_frame");
    }
    if (size > w->capacity - w->size && grow(w, size) < 0) {
        return -1;
    }
    memcpy(w->data + w->size, bytes, size);
    w->size += size;
    return 0;
}

/* A packer whose target the compiler sees, so that it writes here without a call for each piece. */
#define TO(w) (&(msgpack_packer){ .data = (w), .callback = append })

static int pack_text(writer *w, const char *text, Py_ssize_t size)
{
    return msgpack_pack_str(TO(w), (size_t)size) ? -1 : append(w, text, (size_t)size);
}

static int pack_str(writer *w, PyObject *value)
{
    Py_ssize_t size;
    const char *text = PyUnicode_AsUTF8AndSize(value, &size);
    if (text) {
        return pack_text(w, text, size);
    }
    if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) {
        return -1;
    }
    PyErr_Clear();
    PyObject *bytes = PyUnicode_AsEncodedString(value, "utf-8", "surrogatepass");
    int result = bytes ? pack_text(w, PyBytes_AsString(bytes), PyBytes_Size(bytes)) : -1;
    Py_XDECREF(bytes);
    return result;
}

static int pack_buffer(writer *w, PyObject *value)
{
    Py_buffer view;
    if (PyObject_GetBuffer(value, &view, PyBUF_SIMPLE) < 0) {
        if (PyErr_ExceptionMatches(PyExc_BufferError) || PyErr_ExceptionMatches(PyExc_ValueError)) {
            PyErr_Clear();
            refuse_value(w, value, "is released or not contiguous");
        }
        return -1;
    }
    int result = msgpack_pack_bin(TO(w), (size_t)view.len) ? -1 : append(w, view.buf, (size_t)view.len);
    PyBuffer_Release(&view);
    return result;
}

static int pack_int(writer *w, PyObject *value)
{
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (!overflow) {
        return number == -1 && PyErr_Occurred() ? -1 : msgpack_pack_int64(TO(w), number);
    }
    unsigned long long natural = overflow > 0 ? PyLong_AsUnsignedLongLong(value) : 0;
    if (overflow < 0 || (natural == (unsigned long long)-1 && PyErr_Occurred())) {
        PyErr_Clear();
        return refuse_value(w, value, "is outside of [-2**63, 2**64)");
    }
    return msgpack_pack_uint64(TO(w), natural);
}

static int pack(writer *w, PyObject *value);

static int refuse_change(writer *w, PyObject *value) { return refuse_value(w, value, "changed while it was encoded"); }

static int open_container(writer *w, bool map, size_t count)
{
    uint64_t members = map ? 2 * (uint64_t)count : count;
    if (w->depth >= w->limits.max_depth) {
        return refuse(w, SWX_PY_TOO_DEEP);
    }
    if (members > w->limits.max_items - w->promised) {
        return refuse(w, SWX_PY_TOO_MANY);
    }
    w->depth++;
    w->promised += members;
    return map ? msgpack_pack_map(TO(w), count) : msgpack_pack_array(TO(w), count);
}

/* Another one's code runs in the middle of a buffer that has __buffer__, and may change what holds it. */
static int pack_items(writer *w, PyObject *items, bool list)
{
    Py_ssize_t size = list ? PyList_Size(items) : PyTuple_Size(items);
    int result = open_container(w, false, (size_t)size);
    for (Py_ssize_t i = 0; i < size && result == 0; i++) {
        PyObject *item = list ? PyList_GetItem(items, i) : PyTuple_GetItem(items, i);
        if (!item) {
            PyErr_Clear();
            return refuse_change(w, items);
        }
        Py_INCREF(item);
        result = pack(w, item);
        Py_DECREF(item);
    }
    w->depth--;
    return result == 0 && list && PyList_Size(items) != size ? refuse_change(w, items) : result;
}

static int pack_pair(writer *w, PyObject *key, PyObject *value)
{
    if (Py_TYPE(key) != &PyUnicode_Type && !PyUnicode_Check(key)) {
        return refuse(w, SWX_PY_WRONG_KEY);
    }
    Py_INCREF(value);
    int result = pack_str(w, key) == 0 && pack(w, value) == 0 ? 0 : -1;
    Py_DECREF(value);
    return result;
}

static int pack_dict(writer *w, PyObject *dict)
{
    PyObject *key, *value;
    Py_ssize_t position = 0, left = PyDict_Size(dict);
    int result = open_container(w, true, (size_t)left);
    while (result == 0 && PyDict_Next(dict, &position, &key, &value)) {
        if (--left < 0) {
            break;
        }
        result = pack_pair(w, key, value);
    }
    w->depth--;
    return result == 0 && left ? refuse_change(w, dict) : result;
}

/* Recursion ends at max_depth. */
static int pack(writer *w, PyObject *value)
{
    unsigned long flags = PyType_GetFlags(Py_TYPE(value));
    if (flags & Py_TPFLAGS_UNICODE_SUBCLASS) {
        return pack_str(w, value);
    }
    if (value == Py_None) {
        return msgpack_pack_nil(TO(w));
    }
    if (PyBool_Check(value)) {
        return value == Py_True ? msgpack_pack_true(TO(w)) : msgpack_pack_false(TO(w));
    }
    if (flags & Py_TPFLAGS_LONG_SUBCLASS) {
        return pack_int(w, value);
    }
    if (flags & Py_TPFLAGS_DICT_SUBCLASS) {
        return pack_dict(w, value);
    }
    if (flags & (Py_TPFLAGS_LIST_SUBCLASS | Py_TPFLAGS_TUPLE_SUBCLASS)) {
        return pack_items(w, value, flags & Py_TPFLAGS_LIST_SUBCLASS);
    }
    if (flags & Py_TPFLAGS_BYTES_SUBCLASS || PyByteArray_Check(value) || PyMemoryView_Check(value)) {
        return pack_buffer(w, value);
    }
    if (PyFloat_Check(value)) {
        return msgpack_pack_double(TO(w), PyFloat_AsDouble(value));
    }
    return refuse_value(w, value, "cannot go into a frame");
}

static PyObject *encoder_encode(PyObject *object, PyObject *value)
{
    writer w; /* without its first bytes, which would be set for nothing */
    memset(&w, 0, offsetof(writer, first));
    w.type = Py_TYPE(object);
    w.limits = ((swx_py_frame_object *)object)->limits;
    w.data = w.first;
    w.capacity = sizeof(w.first);
    w.size = SWX_FRAME_HEADER;
    w.promised = 1;
    PyObject *result = NULL;
    if (pack(&w, value) == 0) {
        for (size_t i = 0; i < SWX_FRAME_HEADER; i++) {
            w.data[i] = (uint8_t)(payload_size(&w) >> (8 * (SWX_FRAME_HEADER - 1 - i)));
        }
        result = PyBytes_FromStringAndSize((const char *)w.data, (Py_ssize_t)w.size);
    }
    free(w.data == w.first ? NULL : w.data);
    return result;
}

static PyMethodDef encoder_methods[] = {
    { "encode", encoder_encode, METH_O, "encode($self, value, /)\n--\n\n" },
    { NULL, NULL, 0, NULL },
};

PyType_Spec swx_py_encoder_spec = SWX_PY_SPEC(
    "FrameEncoder", swx_py_frame_object, 0,
    { Py_tp_doc, "FrameEncoder(*, max_frame=67108864, max_depth=32, max_items=1000000)\n--\n\n" },
    { Py_tp_new, swx_py_frame_new }, { Py_tp_dealloc, swx_py_deallocate }, { Py_tp_methods, encoder_methods });
