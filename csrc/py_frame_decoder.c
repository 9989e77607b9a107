/* Makes Python objects straight of a payload. */
#include <string.h>

#include "py_frame.h"
#include "swx_frame.h"

/* Frames have the same few words again and again, above all as keys: the last ones are kept, each in the place that its
 * bytes choose.  So they are not made anew, and their hashes are known. */
enum { WORDS = 128, LONGEST_WORD = 23 };

typedef struct {
    PyObject *text; /* owned; NULL: none yet */
    uint8_t size;
    uint8_t bytes[LONGEST_WORD];
} known_word;

typedef struct {
    swx_py_frame_object base; /* first */
    swx_frame_stream stream;
    known_word words[WORDS];
    swx_error failed; /* what stopped the stream */
    bool busy;        /* a call is at work; the collector may run other code in its middle */
} FrameDecoder;

/* A payload that is being read. */
typedef struct {
    const swx_py_frame_limits *limits;
    known_word *words; /* of the decoder */
    const uint8_t *payload, *at;
    size_t left;
    uint64_t promised; /* values announced so far, the outermost included */
    uint64_t due;      /* of these, how many have not come yet */
    swx_error err;     /* position: in the payload */
} reader;

/* status SWX_OK: an exception of Python's, which can only be a MemoryError. */
static PyObject *stop(reader *r, swx_status status, const char *text, const uint8_t *at)
{
    PyErr_Clear();
    swx_fail(&r->err, status ? status : SWX_ENOMEM, status ? text : "out of memory");
    r->err.position = (size_t)(at - r->payload);
    return NULL;
}

/* The position of the fault that the UnicodeDecodeError found.  -1: another exception is set. */
static Py_ssize_t decode_fault(void)
{
    PyObject *type, *error, *traceback;
    Py_ssize_t start = -1;
    if (!PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
        return -1;
    }
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (!error || PyUnicodeDecodeError_GetStart(error, &start) < 0) {
        start = -1;
    }
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(traceback);
    return start;
}

static PyObject *read_str(reader *r, const uint8_t *bytes, size_t size)
{
    PyObject *text = PyUnicode_DecodeUTF8((const char *)bytes, (Py_ssize_t)size, "surrogatepass");
    if (text) {
        return text;
    }
    Py_ssize_t fault = decode_fault();
    return stop(r, fault < 0 ? SWX_OK : SWX_EFORMAT, "a str is not valid UTF-8", fault < 0 ? bytes : bytes + fault);
}

static PyObject *read_word(reader *r, const uint8_t *bytes, size_t size)
{
    if (!size || size > LONGEST_WORD) {
        return read_str(r, bytes, size);
    }
    known_word *known = &r->words[(bytes[0] + 5 * bytes[size / 2] + 11 * bytes[size - 1] + 3 * size) % WORDS];
    if (known->size == size && memcmp(known->bytes, bytes, size) == 0) {
        return Py_NewRef(known->text);
    }
    PyObject *text = read_str(r, bytes, size), *forgotten = known->text;
    if (text) {
        *known = (known_word){ .text = Py_NewRef(text), .size = (uint8_t)size };
        memcpy(known->bytes, bytes, size);
        Py_XDECREF(forgotten);
    }
    return text;
}

static PyObject *read_value(reader *r, uint32_t depth, bool key);

static PyObject *read_list(reader *r, uint32_t count, uint32_t depth)
{
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (uint32_t i = 0; list && i < count; i++) {
        PyObject *item = read_value(r, depth + 1, false);
        if (!item || PyList_SetItem(list, (Py_ssize_t)i, item) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyObject *read_dict(reader *r, uint32_t count, uint32_t depth, const uint8_t *start)
{
    PyObject *dict = PyDict_New();
    for (uint32_t i = 0; dict && i < count; i++) {
        PyObject *key = read_value(r, depth + 1, true);
        PyObject *value = key ? read_value(r, depth + 1, false) : NULL;
        if (!value || PyDict_SetItem(dict, key, value) < 0) {
            Py_CLEAR(dict);
        }
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    if (dict && PyDict_Size(dict) != (Py_ssize_t)count) {
        Py_DECREF(dict);
        return stop(r, SWX_EFORMAT, "a map has the same key twice", start);
    }
    return dict;
}

/* Asks the limits before room is made for anything. */
static PyObject *read_container(reader *r, const swx_value *value, uint32_t depth, const uint8_t *start)
{
    bool map = value->kind == SWX_MAP;
    uint64_t members = map ? 2 * (uint64_t)value->count : value->count;
    if (depth >= r->limits->max_depth) {
        return stop(r, SWX_ELIMIT, SWX_PY_TOO_DEEP, start);
    }
    if (members > r->limits->max_items - r->promised) {
        return stop(r, SWX_ELIMIT, SWX_PY_TOO_MANY, start);
    }
    r->promised += members;
    r->due += members;
    if (r->due > r->left) { /* a value takes at least one byte */
        return stop(r, SWX_EFORMAT, "the value is cut short", start);
    }
    return map ? read_dict(r, value->count, depth, start) : read_list(r, value->count, depth);
}

static PyObject *read_value(reader *r, uint32_t depth, bool key)
{
    const uint8_t *start = r->at;
    swx_value value;
    if (!r->left || !swx_value_read(start, r->left, &value)) {
        return stop(r, SWX_EFORMAT, "the value is cut short", start);
    }
    if (key && value.kind != SWX_STR && value.kind < SWX_EXT) {
        return stop(r, SWX_EFORMAT, SWX_PY_WRONG_KEY, start);
    }
    r->at += value.header + value.body;
    r->left -= value.header + value.body;
    r->due--;
    const uint8_t *body = start + value.header;
    switch (value.kind) {
    case SWX_NIL: return Py_NewRef(Py_None);
    case SWX_BOOL: return PyBool_FromLong(value.integer != 0);
    case SWX_INT: return PyLong_FromLongLong(value.integer);
    case SWX_UINT: return PyLong_FromUnsignedLongLong(value.natural);
    case SWX_FLOAT: return PyFloat_FromDouble(value.number);
    case SWX_STR: return read_word(r, body, value.body);
    case SWX_BIN: return PyBytes_FromStringAndSize((const char *)body, (Py_ssize_t)value.body);
    case SWX_ARRAY:
    case SWX_MAP: return read_container(r, &value, depth, start);
    case SWX_EXT: return stop(r, SWX_EUNSUPPORTED, "ext types are not accepted", start);
    default: return stop(r, SWX_EFORMAT, "the byte 0xc1 is reserved", start);
    }
}

/* The payload as an object; NULL: err says why not, and no exception is set. */
static PyObject *read_payload(FrameDecoder *self, swx_span payload, swx_error *err)
{
    reader r = { .limits = &self->base.limits,
                 .words = self->words,
                 .payload = payload.bytes,
                 .at = payload.bytes,
                 .left = payload.size,
                 .promised = 1,
                 .due = 1 };
    PyObject *value = read_value(&r, 0, false);
    if (!value && r.err.status == SWX_OK) {
        stop(&r, SWX_OK, NULL, r.at);
    } else if (value && r.left) {
        Py_CLEAR(value);
        stop(&r, SWX_EFORMAT, "a frame holds one value, and there is more", r.at);
    }
    *err = r.err;
    return value;
}

/* Appends the frames of a chunk to the list.  False: self->failed says why. */
static bool read_frames(FrameDecoder *self, const uint8_t *bytes, size_t size, PyObject *frames)
{
    swx_span payload;
    swx_status status = self->failed.status;
    while (status == SWX_OK &&
           (status = swx_frame_take(&self->stream, &bytes, &size, &payload, &self->failed)) == SWX_OK) {
        PyObject *value = read_payload(self, payload, &self->failed);
        if (!value) {
            self->failed.position += (size_t)self->stream.position - payload.size;
            return false;
        }
        if (PyList_Append(frames, value) < 0) {
            PyErr_Clear();
            status = swx_fail(&self->failed, SWX_ENOMEM, "out of memory");
        }
        Py_DECREF(value);
    }
    return status == SWX_MORE;
}

/* The bytes of what a call was given, which never change; NULL with TypeError. */
static PyObject *bytes_of(PyObject *data, const uint8_t **bytes, size_t *size)
{
    if (!PyBytes_Check(data) && !PyObject_CheckBuffer(data)) {
        PyErr_SetString(PyExc_TypeError, "a frame is decoded from a bytes-like object");
        return NULL;
    }
    PyObject *copy = PyBytes_CheckExact(data) ? Py_NewRef(data) : PyBytes_FromObject(data);
    if (copy) {
        *bytes = (const uint8_t *)PyBytes_AsString(copy);
        *size = (size_t)PyBytes_Size(copy);
    }
    return copy;
}

static PyObject *decoder_feed(PyObject *object, PyObject *data)
{
    FrameDecoder *self = (FrameDecoder *)object;
    const uint8_t *bytes;
    size_t size;
    PyObject *chunk = bytes_of(data, &bytes, &size);
    if (chunk && self->busy) {
        PyErr_SetString(PyExc_RuntimeError, "the FrameDecoder is in use by another call");
        Py_CLEAR(chunk);
    }
    if (!chunk) {
        return NULL;
    }
    self->busy = true;
    PyObject *frames = PyList_New(0);
    if (frames && !read_frames(self, bytes, size, frames)) {
        if (self->failed.status == SWX_ENOMEM) {
            PyErr_NoMemory();
        } else {
            swx_py_frame_raise(Py_TYPE(object), self->failed.text, self->failed.position);
        }
        Py_CLEAR(frames);
    }
    self->busy = false;
    Py_DECREF(chunk);
    return frames;
}

static PyObject *decoder_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    FrameDecoder *self = (FrameDecoder *)swx_py_frame_new(type, args, kwargs);
    if (self) {
        self->stream.max_frame = self->base.limits.max_frame;
    }
    return (PyObject *)self;
}

static void decoder_dealloc(PyObject *object)
{
    FrameDecoder *self = (FrameDecoder *)object;
    swx_frame_reset(&self->stream);
    for (size_t i = 0; i < WORDS; i++) {
        Py_XDECREF(self->words[i].text);
    }
    swx_py_deallocate(object);
}

static PyMethodDef decoder_methods[] = {
    { "feed", decoder_feed, METH_O, "feed($self, data, /)\n--\n\n" },
    { NULL, NULL, 0, NULL },
};

PyType_Spec swx_py_decoder_spec =
    SWX_PY_SPEC("FrameDecoder", FrameDecoder, 0,
                { Py_tp_doc, "FrameDecoder(*, max_frame=67108864, max_depth=32, max_items=1000000)\n--\n\n" },
                { Py_tp_new, decoder_new }, { Py_tp_dealloc, decoder_dealloc }, { Py_tp_methods, decoder_methods });
