/* Frames for Python.  msgpack-c packs Python objects straight into the output, and objects are made straight of the payload;
 * neither has a tree of its own in between. */
#include "py_frame.h"

#include <string.h>

#include <msgpack.h>

#include "swx_alloc.h"
#include "swx_frame.h"

enum {
    REFERRED = 2 * 1024, /* bytes from which on a str or bin is not copied before the frame is put together */
    MAX_DEPTH = 128      /* the most that max_depth can be */
};

static const char TOO_DEEP[] = "the value is nested deeper than max_depth";
static const char TOO_MANY[] = "the value has more than max_items items";
static const char TOO_LONG[] = "the frame is longer than max_frame";
static const char WRONG_KEY[] = "a map key is not a str";

typedef struct {
    uint32_t max_frame; /* bytes of payload */
    uint32_t max_depth; /* lists and dicts inside each other */
    uint32_t max_items; /* values in a frame: the outermost, each member, each key, each container */
} frame_limits;

/* Raises FrameError.  type: a type of ours; frames may be NULL. */
static void raise_at(PyTypeObject *type, const char *text, size_t position, PyObject *frames)
{
    PyObject *module = PyType_GetModule(type);
    PyObject *error_type = module ? PyObject_GetAttrString(module, "FrameError") : NULL;
    PyObject *message = error_type ? PyUnicode_FromFormat("%s (at byte %zu)", text, position) : NULL;
    PyObject *error = message ? PyObject_CallFunctionObjArgs(error_type, message, NULL) : NULL;
    PyObject *number = error ? PyLong_FromSize_t(position) : NULL;
    if (number && PyObject_SetAttrString(error, "position", number) == 0 &&
        (!frames || PyObject_SetAttrString(error, "frames", frames) == 0)) {
        PyErr_SetObject(error_type, error);
    }
    Py_XDECREF(number);
    Py_XDECREF(error);
    Py_XDECREF(message);
    Py_XDECREF(error_type);
}

/* One limit of a constructor: object (or NULL for the default) to *limit.  0, or -1 with ValueError set. */
static int read_limit(PyObject *object, const char *name, uint32_t most, uint32_t *limit)
{
    int overflow;
    long long value = object ? PyLong_AsLongLongAndOverflow(object, &overflow) : 0;
    if (!object || (value == -1 && PyErr_Occurred())) {
        return object ? -1 : 0;
    }
    if (overflow || value < 1 || value > (long long)most) {
        PyErr_Format(PyExc_ValueError, "%s must be from 1 to %u", name, (unsigned)most);
        return -1;
    }
    *limit = (uint32_t)value;
    return 0;
}

static int read_limits(PyObject *args, PyObject *kwargs, frame_limits *limits)
{
    static char *names[] = { "max_frame", "max_depth", "max_items", NULL };
    PyObject *frame = NULL, *depth = NULL, *items = NULL;
    *limits = (frame_limits){ .max_frame = 64 << 20, .max_depth = 32, .max_items = 1000000 };
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$OOO", names, &frame, &depth, &items) ||
        read_limit(frame, names[0], UINT32_MAX, &limits->max_frame) < 0 ||
        read_limit(depth, names[1], MAX_DEPTH, &limits->max_depth) < 0) {
        return -1;
    }
    return read_limit(items, names[2], UINT32_MAX, &limits->max_items);
}

/* An instance of type, all zeros but for its header. */
static PyObject *allocate(PyTypeObject *type)
{
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    return alloc(type, 0);
}

static void deallocate(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

/* ---- encoder ---- */

typedef struct {
    PyObject_HEAD
    frame_limits limits;
} FrameEncoder;

/* Bytes of others, which come after the first `offset` bytes of the output. */
typedef struct {
    size_t offset;
    const char *bytes;
    size_t size;
    PyObject *text; /* whose bytes they are; NULL: view is held */
    Py_buffer view;
} piece;

/* A frame that is being written. */
typedef struct {
    PyTypeObject *type;
    frame_limits limits;
    uint8_t *data; /* first, or its own memory: all but the pieces */
    size_t size, capacity;
    size_t referred; /* bytes of the pieces */
    piece *pieces;
    size_t piece_count, piece_capacity;
    uint32_t depth;
    uint64_t promised; /* values announced so far, the outermost included */
    uint8_t first[512];
} writer;

/* Bytes of the payload so far. */
static size_t payload_size(const writer *w) { return w->size - SWX_FRAME_HEADER + w->referred; }

static int refuse(writer *w, const char *text)
{
    raise_at(w->type, text, payload_size(w), NULL);
    return -1;
}

/* Refuses a value for its type. */
static int refuse_type(writer *w, const char *format, PyObject *value)
{
    PyObject *name = PyType_GetName(Py_TYPE(value));
    PyObject *text = name ? PyUnicode_FromFormat(format, name) : NULL;
    const char *message = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    if (message) {
        refuse(w, message);
    }
    Py_XDECREF(text);
    Py_XDECREF(name);
    return -1;
}

/* Room for so many more bytes: 0, or -1 with an exception. */
static int make_room(writer *w, size_t size)
{
    if (size > w->limits.max_frame - payload_size(w)) {
        return refuse(w, TOO_LONG);
    }
    if (size <= w->capacity - w->size) {
        return 0;
    }
    size_t capacity = 2 * (w->size + size);
    uint8_t *data = swx_realloc(w->data == w->first ? NULL : w->data, capacity);
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
    if ((size > w->capacity - w->size || size > w->limits.max_frame - payload_size(w)) && make_room(w, size) < 0) {
        return -1;
    }
    memcpy(w->data + w->size, bytes, size);
    w->size += size;
    return 0;
}

/* A packer whose target the compiler sees, so that it writes here without a call for each piece. */
#define TO(w) (&(msgpack_packer){ .data = (w), .callback = append })

/* A place for bytes that are not copied yet, or NULL with an exception. */
static piece *add_piece(writer *w, const char *bytes, size_t size)
{
    if (size > w->limits.max_frame - payload_size(w)) {
        refuse(w, TOO_LONG);
        return NULL;
    }
    if (w->piece_count == w->piece_capacity) {
        size_t capacity = w->piece_capacity ? w->piece_capacity * 2 : 8;
        piece *pieces = swx_realloc(w->pieces, capacity * sizeof(*pieces));
        if (!pieces) {
            PyErr_NoMemory();
            return NULL;
        }
        w->pieces = pieces;
        w->piece_capacity = capacity;
    }
    w->referred += size;
    piece *added = &w->pieces[w->piece_count++];
    *added = (piece){ .offset = w->size, .bytes = bytes, .size = size };
    return added;
}

static int pack_str(writer *w, PyObject *value)
{
    Py_ssize_t size;
    const char *text = PyUnicode_AsUTF8AndSize(value, &size);
    if (!text) {
        if (PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) {
            PyErr_Clear();
            refuse(w, "a str holds a surrogate, which UTF-8 cannot carry");
        }
        return -1;
    }
    if (msgpack_pack_str(TO(w), (size_t)size)) {
        return -1;
    }
    if (size < REFERRED) {
        return append(w, text, (size_t)size);
    }
    piece *added = add_piece(w, text, (size_t)size);
    if (added) {
        added->text = Py_NewRef(value);
    }
    return added ? 0 : -1;
}

static int pack_view(writer *w, Py_buffer *view)
{
    if (msgpack_pack_bin(TO(w), (size_t)view->len)) {
        return -1;
    }
    if (view->len < REFERRED) {
        return append(w, view->buf, (size_t)view->len);
    }
    piece *added = add_piece(w, view->buf, (size_t)view->len);
    if (!added) {
        return -1;
    }
    added->view = *view;
    view->obj = NULL; /* the piece holds it */
    return 0;
}

static int pack_buffer(writer *w, PyObject *value)
{
    Py_buffer view;
    if (PyObject_GetBuffer(value, &view, PyBUF_SIMPLE) < 0) {
        if (PyErr_ExceptionMatches(PyExc_BufferError) || PyErr_ExceptionMatches(PyExc_ValueError)) {
            PyErr_Clear();
            refuse_type(w, "a value of type %U is released or not contiguous", value);
        }
        return -1;
    }
    int result = pack_view(w, &view);
    if (view.obj) {
        PyBuffer_Release(&view);
    }
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
        return refuse_type(w, "a value of type %U is outside of [-2**63, 2**64)", value);
    }
    return msgpack_pack_uint64(TO(w), natural);
}

static int pack(writer *w, PyObject *value);

static int refuse_change(writer *w, PyObject *value)
{
    return refuse_type(w, "a value of type %U changed while it was encoded", value);
}

static int open_container(writer *w, bool map, size_t count)
{
    uint64_t members = map ? 2 * (uint64_t)count : count;
    if (w->depth >= w->limits.max_depth) {
        return refuse(w, TOO_DEEP);
    }
    if (members > w->limits.max_items - w->promised) {
        return refuse(w, TOO_MANY);
    }
    w->depth++;
    w->promised += members;
    return map ? msgpack_pack_map(TO(w), count) : msgpack_pack_array(TO(w), count);
}

/* Another one's code runs in the middle of a buffer that has __buffer__, and may change what holds it. */
static int pack_list(writer *w, PyObject *list)
{
    Py_ssize_t size = PyList_Size(list);
    int result = open_container(w, false, (size_t)size);
    for (Py_ssize_t i = 0; i < size && result == 0; i++) {
        PyObject *item = PyList_GetItem(list, i);
        if (!item) {
            PyErr_Clear();
            return refuse_change(w, list);
        }
        Py_INCREF(item);
        result = pack(w, item);
        Py_DECREF(item);
    }
    return result == 0 && PyList_Size(list) != size ? refuse_change(w, list) : result;
}

static int pack_tuple(writer *w, PyObject *tuple)
{
    Py_ssize_t size = PyTuple_Size(tuple);
    int result = open_container(w, false, (size_t)size);
    for (Py_ssize_t i = 0; i < size && result == 0; i++) {
        result = pack(w, PyTuple_GetItem(tuple, i));
    }
    return result;
}

static int pack_pair(writer *w, PyObject *key, PyObject *value)
{
    if (Py_TYPE(key) != &PyUnicode_Type && !PyUnicode_Check(key)) {
        return refuse(w, WRONG_KEY);
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
    return result == 0 && left ? refuse_change(w, dict) : result;
}

static int pack_container(writer *w, PyObject *value, unsigned long flags)
{
    int result = flags & Py_TPFLAGS_DICT_SUBCLASS   ? pack_dict(w, value)
                 : flags & Py_TPFLAGS_LIST_SUBCLASS ? pack_list(w, value)
                                                    : pack_tuple(w, value);
    w->depth--;
    return result;
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
    if (flags & (Py_TPFLAGS_LIST_SUBCLASS | Py_TPFLAGS_TUPLE_SUBCLASS | Py_TPFLAGS_DICT_SUBCLASS)) {
        return pack_container(w, value, flags);
    }
    if (flags & Py_TPFLAGS_BYTES_SUBCLASS || PyByteArray_Check(value) || PyMemoryView_Check(value)) {
        return pack_buffer(w, value);
    }
    if (PyFloat_Check(value)) {
        return msgpack_pack_double(TO(w), PyFloat_AsDouble(value));
    }
    return refuse_type(w, "a value of type %U cannot go into a frame", value);
}

static PyObject *put_together(const writer *w)
{
    size_t total = w->size + w->referred, at = 0, length = total - SWX_FRAME_HEADER;
    PyObject *result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total);
    if (!result) {
        return NULL;
    }
    char *out = PyBytes_AsString(result), *begin = out;
    for (size_t i = 0; i < w->piece_count; i++) {
        const piece *p = &w->pieces[i];
        memcpy(out, w->data + at, p->offset - at);
        out += p->offset - at;
        memcpy(out, p->bytes, p->size);
        out += p->size;
        at = p->offset;
    }
    memcpy(out, w->data + at, w->size - at);
    for (size_t i = 0; i < SWX_FRAME_HEADER; i++) {
        begin[i] = (char)(length >> (8 * (SWX_FRAME_HEADER - 1 - i)));
    }
    return result;
}

static void free_writer(writer *w)
{
    for (size_t i = 0; i < w->piece_count; i++) {
        if (w->pieces[i].text) {
            Py_DECREF(w->pieces[i].text);
        } else {
            PyBuffer_Release(&w->pieces[i].view);
        }
    }
    swx_free(w->pieces);
    swx_free(w->data == w->first ? NULL : w->data);
}

PyDoc_STRVAR(encode_doc,
"encode($self, value, /)\n--\n\n"
"One frame (bytes, its length included) that holds `value`.\n\n"
"None, bool, int in [-2**63, 2**64), float, str without surrogates, bytes, bytearray and contiguous memoryview (all\n"
"three come back as bytes), list and tuple (both come back as list), dict with str keys; subclasses count as their\n"
"base. Raises FrameError for any other value and for one that passes a limit; `position` is the byte of the payload\n"
"where it would have been. A failed call leaves nothing behind. May be called from several threads at once.");

static PyObject *encoder_encode(PyObject *object, PyObject *value)
{
    writer w; /* without its first bytes, which would be set for nothing */
    memset(&w, 0, offsetof(writer, first));
    w.type = Py_TYPE(object);
    w.limits = ((FrameEncoder *)object)->limits;
    w.data = w.first;
    w.capacity = sizeof(w.first);
    w.size = SWX_FRAME_HEADER;
    w.promised = 1;
    PyObject *result = pack(&w, value) == 0 ? put_together(&w) : NULL;
    free_writer(&w);
    return result;
}

static PyObject *encoder_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    frame_limits limits;
    PyObject *object = read_limits(args, kwargs, &limits) < 0 ? NULL : allocate(type);
    if (object) {
        ((FrameEncoder *)object)->limits = limits;
    }
    return object;
}

PyDoc_STRVAR(encoder_doc,
"FrameEncoder(*, max_frame=67108864, max_depth=32, max_items=1000000)\n--\n\n"
"Makes frames: a length of 4 bytes, big-endian, and one msgpack value of that many bytes.\n\n"
"max_frame is bytes of payload, max_depth (at most 128) counts lists and dicts inside each other, max_items counts\n"
"values, keys and containers of a frame.");

static PyMethodDef encoder_methods[] = {
    { "encode", encoder_encode, METH_O, encode_doc },
    { NULL, NULL, 0, NULL },
};

static PyType_Slot encoder_slots[] = {
    { Py_tp_doc, (void *)encoder_doc },
    { Py_tp_new, encoder_new },
    { Py_tp_dealloc, deallocate },
    { Py_tp_methods, encoder_methods },
    { 0, NULL },
};

static PyType_Spec encoder_spec = {
    .name = "swerex_c._core.FrameEncoder",
    .basicsize = sizeof(FrameEncoder),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = encoder_slots,
};

/* ---- decoder ---- */

/* Frames have the same few words again and again, above all as keys: the last ones are kept, each in the place that its bytes
 * choose.  So they are not made anew, and their hashes are known. */
enum { WORDS = 128, LONGEST_WORD = 23 };

typedef struct {
    PyObject *text; /* owned; NULL: none yet */
    uint8_t size;
    uint8_t bytes[LONGEST_WORD];
} known_word;

typedef struct {
    PyObject_HEAD
    frame_limits limits;
    swx_frame_stream stream;
    known_word words[WORDS];
    swx_error failed; /* what stopped the stream */
    bool busy;        /* a call is at work; the collector may run other code in its middle */
} FrameDecoder;

/* A payload that is being read. */
typedef struct {
    const frame_limits *limits;
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

/* Where in its bytes the UnicodeDecodeError that is set found the fault.  -1: it is another exception. */
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
    PyObject *text = PyUnicode_FromStringAndSize((const char *)bytes, (Py_ssize_t)size);
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
        return stop(r, SWX_ELIMIT, TOO_DEEP, start);
    }
    if (members > r->limits->max_items - r->promised) {
        return stop(r, SWX_ELIMIT, TOO_MANY, start);
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
        return stop(r, SWX_EFORMAT, WRONG_KEY, start);
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
    reader r = { .limits = &self->limits, .words = self->words, .payload = payload.bytes, .at = payload.bytes,
                 .left = payload.size, .promised = 1, .due = 1 };
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

/* Raises for an error.  Returns NULL. */
static PyObject *raise(FrameDecoder *self, const swx_error *err, PyObject *frames)
{
    if (err->status == SWX_ENOMEM) {
        return PyErr_NoMemory();
    }
    raise_at(Py_TYPE((PyObject *)self), err->text, err->position, frames);
    return NULL;
}

/* Appends the frames of a chunk to the list.  False: self->failed says why. */
static bool read_frames(FrameDecoder *self, const uint8_t *bytes, size_t size, PyObject *frames)
{
    swx_span payload;
    swx_status status = self->failed.status;
    while (status == SWX_OK && (status = swx_frame_take(&self->stream, &bytes, &size, &payload, &self->failed)) == SWX_OK) {
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

/* Claims the decoder for a call.  False with RuntimeError set. */
static bool claim(FrameDecoder *self)
{
    if (self->busy) {
        PyErr_SetString(PyExc_RuntimeError, "the FrameDecoder is in use by another call");
        return false;
    }
    return self->busy = true;
}

PyDoc_STRVAR(feed_doc,
"feed($self, data, /)\n--\n\n"
"The values of the frames that `data` (bytes-like) completes, in order; often an empty list.\n\n"
"Any cut of the stream gives the same values. Raises FrameError when the stream is not what it should be: the error's\n"
"`position` is the byte of the stream and its `frames` the values before it that this call decoded. The same error\n"
"comes again, without values, until reset(). Not for use by two threads at once (RuntimeError).");

static PyObject *decoder_feed(PyObject *object, PyObject *data)
{
    FrameDecoder *self = (FrameDecoder *)object;
    const uint8_t *bytes;
    size_t size;
    PyObject *chunk = bytes_of(data, &bytes, &size);
    if (!chunk || !claim(self)) {
        Py_XDECREF(chunk);
        return NULL;
    }
    PyObject *frames = PyList_New(0);
    if (frames && !read_frames(self, bytes, size, frames)) {
        raise(self, &self->failed, frames);
        Py_CLEAR(frames);
    }
    self->busy = false;
    Py_DECREF(chunk);
    return frames;
}

PyDoc_STRVAR(decode_doc,
"decode($self, frame, /)\n--\n\n"
"The value of one frame (bytes-like, its length included), as encode() makes it.\n\n"
"Has nothing to do with the stream of feed(). Raises FrameError when `frame` is not exactly one frame that feed() would\n"
"take; its `position` is the byte of `frame`.");

/* The payload of the only frame in these bytes. */
static swx_status take_one(const frame_limits *limits, const uint8_t *bytes, size_t size, swx_span *payload, swx_error *err)
{
    swx_frame_stream stream = { .max_frame = limits->max_frame };
    size_t left = size;
    swx_status status = swx_frame_take(&stream, &bytes, &left, payload, err);
    if (status == SWX_MORE || (status == SWX_OK && left)) {
        status = swx_fail(err, SWX_EFORMAT, left ? "there is more after the frame" : "the frame is cut short");
        err->position = size - left;
    }
    swx_frame_reset(&stream);
    return status;
}

static PyObject *decoder_decode(PyObject *object, PyObject *data)
{
    FrameDecoder *self = (FrameDecoder *)object;
    const uint8_t *bytes;
    size_t size;
    swx_span payload;
    swx_error err;
    PyObject *value = NULL, *chunk = bytes_of(data, &bytes, &size);
    if (!chunk) {
        return NULL;
    }
    if (take_one(&self->limits, bytes, size, &payload, &err) == SWX_OK) {
        value = read_payload(self, payload, &err);
        err.position += SWX_FRAME_HEADER;
    }
    if (!value) {
        raise(self, &err, NULL);
    }
    Py_DECREF(chunk);
    return value;
}

PyDoc_STRVAR(reset_doc,
"reset($self, /)\n--\n\n"
"Forgets the stream and its error; the next byte is the first of a new stream.");

static PyObject *decoder_reset(PyObject *object, PyObject *unused)
{
    FrameDecoder *self = (FrameDecoder *)object;
    (void)unused;
    if (!claim(self)) {
        return NULL;
    }
    swx_frame_reset(&self->stream);
    self->failed = (swx_error){ .status = SWX_OK };
    self->busy = false;
    return Py_NewRef(Py_None);
}

static PyObject *decoder_pending(PyObject *object, void *closure)
{
    (void)closure;
    return PyLong_FromSize_t(((FrameDecoder *)object)->stream.size);
}

static PyObject *decoder_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    frame_limits limits;
    PyObject *object = read_limits(args, kwargs, &limits) < 0 ? NULL : allocate(type);
    if (object) {
        ((FrameDecoder *)object)->limits = limits;
        ((FrameDecoder *)object)->stream.max_frame = limits.max_frame;
    }
    return object;
}

static void decoder_dealloc(PyObject *object)
{
    FrameDecoder *self = (FrameDecoder *)object;
    swx_frame_reset(&self->stream);
    for (size_t i = 0; i < WORDS; i++) {
        Py_XDECREF(self->words[i].text);
    }
    deallocate(object);
}

PyDoc_STRVAR(decoder_doc,
"FrameDecoder(*, max_frame=67108864, max_depth=32, max_items=1000000)\n--\n\n"
"Takes the frames that a FrameEncoder makes out of a byte stream, however it is cut.\n\n"
"The limits mean what they mean there, and are asked before room is made for anything; memory grows with bytes that\n"
"came, not with a length that was announced. Refused too: ext types, map keys that are not str or come twice, str that is\n"
"not UTF-8, and a payload that is not exactly one value.");

static PyMethodDef decoder_methods[] = {
    { "feed", decoder_feed, METH_O, feed_doc },
    { "decode", decoder_decode, METH_O, decode_doc },
    { "reset", decoder_reset, METH_NOARGS, reset_doc },
    { NULL, NULL, 0, NULL },
};

static PyGetSetDef decoder_getset[] = {
    { "pending", decoder_pending, NULL,
      "Bytes of an unfinished frame that came so far; not 0 at the end of a stream means that it was cut.", NULL },
    { NULL, NULL, NULL, NULL, NULL },
};

static PyType_Slot decoder_slots[] = {
    { Py_tp_doc, (void *)decoder_doc },
    { Py_tp_new, decoder_new },
    { Py_tp_dealloc, decoder_dealloc },
    { Py_tp_methods, decoder_methods },
    { Py_tp_getset, decoder_getset },
    { 0, NULL },
};

static PyType_Spec decoder_spec = {
    .name = "swerex_c._core.FrameDecoder",
    .basicsize = sizeof(FrameDecoder),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = decoder_slots,
};

/* ---- module ---- */

static int add_error(PyObject *module)
{
    PyObject *defaults = Py_BuildValue("{s:i,s:()}", "position", 0, "frames");
    PyObject *error = NULL;
    if (defaults) {
        error = PyErr_NewExceptionWithDoc(
            "swerex_c._core.FrameError",
            "A value or a byte stream that cannot be a frame.\n\n"
            "position: the byte at fault. frames: the values that the failed feed() had decoded before it.",
            PyExc_ValueError, defaults);
    }
    int result = error ? PyModule_AddObjectRef(module, "FrameError", error) : -1;
    Py_XDECREF(error);
    Py_XDECREF(defaults);
    return result;
}

static int add_type(PyObject *module, PyType_Spec *spec)
{
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    int result = type ? PyModule_AddType(module, (PyTypeObject *)type) : -1;
    Py_XDECREF(type);
    return result;
}

int swx_py_frame_init(PyObject *module)
{
    if (add_error(module) < 0 || add_type(module, &encoder_spec) < 0 || add_type(module, &decoder_spec) < 0) {
        return -1;
    }
    return PyModule_AddStringConstant(module, "msgpack_version", MSGPACK_VERSION);
}
