/* Frames for Python.  The encoder walks Python objects straight into the core's output, the decoder's builder makes
 * them straight from the payload; neither has a tree of its own in between. */
#include "py_frame.h"

#include <stdatomic.h>
#include <string.h>

#include "swx_alloc.h"
#include "swx_frame.h"

enum {
    REFERRED = 16 * 1024, /* bytes from which on a str or bin is not copied before the frame is put together */
    LONG_COPY = 64 * 1024 /* bytes from which on letting other threads run is worth its cost */
};

/* Containers are locked while they are walked where there is no GIL. */
#ifdef Py_GIL_DISABLED
#define LOCK(object) Py_BEGIN_CRITICAL_SECTION(object)
#define UNLOCK() Py_END_CRITICAL_SECTION()
#else
#define LOCK(object) {
#define UNLOCK() }
#endif

static void copy_bytes(uint8_t *out, const uint8_t *bytes, size_t size)
{
    if (size < LONG_COPY) {
        memcpy(out, bytes, size);
    } else {
        Py_BEGIN_ALLOW_THREADS
        memcpy(out, bytes, size);
        Py_END_ALLOW_THREADS
    }
}

/* Sets a FrameError; takes over message (NULL: an exception is set already).  frames may be NULL. */
static void set_error(PyObject *error_type, PyObject *message, size_t position, PyObject *frames)
{
    PyObject *error = message ? PyObject_CallFunctionObjArgs(error_type, message, NULL) : NULL;
    PyObject *number = error ? PyLong_FromSize_t(position) : NULL;
    if (number && PyObject_SetAttrString(error, "position", number) == 0 &&
        (!frames || PyObject_SetAttrString(error, "frames", frames) == 0)) {
        PyErr_SetObject(error_type, error);
    }
    Py_XDECREF(number);
    Py_XDECREF(error);
    Py_XDECREF(message);
}

/* The exception for an error of the core. */
static void set_core_error(PyObject *error_type, const swx_error *err, PyObject *frames)
{
    if (err->status == SWX_ENOMEM) {
        PyErr_NoMemory();
        return;
    }
    set_error(error_type, PyUnicode_FromFormat("%s (at byte %zu)", err->text, err->position), err->position, frames);
}

/* One limit of a constructor: object (or NULL for the default) to *limit.  0, or -1 with ValueError set. */
static int read_limit(PyObject *object, const char *name, uint32_t most, uint32_t *limit)
{
    *limit = 0;
    if (!object) {
        return 0;
    }
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (value == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (overflow || value < 1 || value > (long long)most) {
        PyErr_Format(PyExc_ValueError, "%s must be from 1 to %u", name, (unsigned)most);
        return -1;
    }
    *limit = (uint32_t)value;
    return 0;
}

/* Text is trusted, because a str object is valid and making one checks the bytes. */
static int read_limits(PyObject *args, PyObject *kwargs, swx_frame_limits *limits)
{
    static char *names[] = { "max_frame", "max_depth", "max_items", NULL };
    PyObject *frame = NULL, *depth = NULL, *items = NULL;
    limits->trust_text = true;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$OOO", names, &frame, &depth, &items)) {
        return -1;
    }
    if (read_limit(frame, names[0], UINT32_MAX, &limits->max_frame) < 0 ||
        read_limit(depth, names[1], SWX_FRAME_DEPTH_CEILING, &limits->max_depth) < 0) {
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

/* A new reference to the module's FrameError.  An interned name, because the type cache keeps each new one. */
static PyObject *frame_error_of(PyTypeObject *type)
{
    PyObject *module = PyType_GetModule(type);
    PyObject *name = module ? PyUnicode_InternFromString("FrameError") : NULL;
    PyObject *error_type = name ? PyObject_GetAttr(module, name) : NULL;
    Py_XDECREF(name);
    return error_type;
}

/* ---- encoder ---- */

/* What the core's output refers to, kept until the output was copied. */
typedef struct {
    PyObject *owner; /* NULL: view is held */
    Py_buffer view;
} held;

/* One encoder at work. */
typedef struct {
    swx_frame_encoder core;
    PyObject *error_type; /* borrowed from the FrameEncoder */
    held *held;
    size_t held_count;
    size_t held_capacity;
} writer;

typedef struct {
    PyObject_HEAD
    PyObject *error_type;
    swx_frame_limits limits;
    writer kept; /* keeps its memory from call to call; calls that come while it is in use make their own */
    atomic_flag busy;
} FrameEncoder;

/* Refuses a value by itself: the message's %U is the name of the value's type. */
static int refuse(writer *w, const char *format, PyObject *value)
{
    size_t position = w->core.size - w->core.start - SWX_FRAME_HEADER + w->core.referred;
    PyObject *name = PyType_GetName(Py_TYPE(value));
    if (name) {
        set_error(w->error_type, PyUnicode_FromFormat(format, name), position, NULL);
        Py_DECREF(name);
    }
    return -1;
}

/* Turns a status of the core into 0, or -1 with the exception set. */
static int checked(writer *w, swx_status status)
{
    if (status == SWX_OK) {
        return 0;
    }
    if (w->core.error.status == SWX_OK) {
        PyErr_NoMemory(); /* swx_frame_begin: no frame is open that could hold the error */
    } else {
        set_core_error(w->error_type, &w->core.error, NULL);
    }
    return -1;
}

/* Room for one more held object, or NULL with MemoryError set. */
static held *hold(writer *w)
{
    if (w->held_count == w->held_capacity) {
        size_t capacity = w->held_capacity ? w->held_capacity * 2 : 8;
        held *moved = swx_realloc(w->held, capacity * sizeof(*moved));
        if (!moved) {
            PyErr_NoMemory();
            return NULL;
        }
        w->held = moved;
        w->held_capacity = capacity;
    }
    held *h = &w->held[w->held_count++];
    *h = (held){ .owner = NULL };
    return h;
}

static void release_held(writer *w)
{
    while (w->held_count) {
        held *h = &w->held[--w->held_count];
        if (h->owner) {
            Py_DECREF(h->owner);
        } else {
            PyBuffer_Release(&h->view);
        }
    }
    if (w->held_capacity > 64) {
        swx_free(w->held);
        w->held = NULL;
        w->held_capacity = 0;
    }
}

static void free_writer(writer *w)
{
    release_held(w);
    swx_free(w->held);
    swx_frame_encoder_free(&w->core);
}

typedef swx_status (*pack_function)(swx_frame_encoder *, const void *, size_t);

/* Bytes that never change and live as long as owner. */
static int pack_owned(writer *w, PyObject *owner, const char *bytes, Py_ssize_t size, pack_function copy,
                      pack_function refer)
{
    if (size < REFERRED) {
        return checked(w, copy(&w->core, bytes, (size_t)size));
    }
    held *h = hold(w);
    if (!h) {
        return -1;
    }
    h->owner = Py_NewRef(owner);
    return checked(w, refer(&w->core, bytes, (size_t)size));
}

static int pack_str(writer *w, PyObject *value)
{
    Py_ssize_t size;
    const char *text = PyUnicode_AsUTF8AndSize(value, &size);
    if (text) {
        return pack_owned(w, value, text, size, swx_frame_pack_str, swx_frame_pack_str_ref);
    }
    if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) {
        return -1;
    }
    PyErr_Clear();
    return refuse(w, "a value of type %U holds a surrogate, which UTF-8 cannot carry", value);
}

static int pack_bytes(writer *w, PyObject *value)
{
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(value, &bytes, &size) < 0) {
        return -1;
    }
    return pack_owned(w, value, bytes, size, swx_frame_pack_bin, swx_frame_pack_bin_ref);
}

static int pack_buffer(writer *w, PyObject *value)
{
    Py_buffer view;
    if (PyObject_GetBuffer(value, &view, PyBUF_SIMPLE) < 0) {
        if (!PyErr_ExceptionMatches(PyExc_BufferError) && !PyErr_ExceptionMatches(PyExc_ValueError)) {
            return -1;
        }
        PyErr_Clear();
        return refuse(w, "a value of type %U is released or not contiguous", value);
    }
    if (view.len < REFERRED) {
        int result = checked(w, swx_frame_pack_bin(&w->core, view.buf, (size_t)view.len));
        PyBuffer_Release(&view);
        return result;
    }
    held *h = hold(w);
    if (!h) {
        PyBuffer_Release(&view);
        return -1;
    }
    h->view = view;
    return checked(w, swx_frame_pack_bin_ref(&w->core, view.buf, (size_t)view.len));
}

static int pack_int(writer *w, PyObject *value)
{
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (!overflow) {
        return number == -1 && PyErr_Occurred() ? -1 : checked(w, swx_frame_pack_int(&w->core, number));
    }
    unsigned long long natural = overflow > 0 ? PyLong_AsUnsignedLongLong(value) : 0;
    if (overflow < 0 || (natural == (unsigned long long)-1 && PyErr_Occurred())) {
        PyErr_Clear();
        return refuse(w, "a value of type %U is outside of [-2**63, 2**64)", value);
    }
    return checked(w, swx_frame_pack_uint(&w->core, natural));
}

static int pack(writer *w, PyObject *value);

static int pack_list(writer *w, PyObject *list)
{
    Py_ssize_t size = PyList_Size(list);
    int result = checked(w, swx_frame_pack_array(&w->core, (size_t)size));
    for (Py_ssize_t i = 0; i < size && result == 0; i++) {
        PyObject *item = Py_XNewRef(PyList_GetItem(list, i));
        result = item ? pack(w, item) : -1;
        Py_XDECREF(item);
    }
    return result;
}

static int pack_tuple(writer *w, PyObject *tuple)
{
    Py_ssize_t size = PyTuple_Size(tuple);
    int result = checked(w, swx_frame_pack_array(&w->core, (size_t)size));
    for (Py_ssize_t i = 0; i < size && result == 0; i++) {
        result = pack(w, PyTuple_GetItem(tuple, i));
    }
    return result;
}

static int pack_dict(writer *w, PyObject *dict)
{
    PyObject *key, *value;
    Py_ssize_t position = 0;
    int result = checked(w, swx_frame_pack_map(&w->core, (size_t)PyDict_Size(dict)));
    while (result == 0 && PyDict_Next(dict, &position, &key, &value)) {
        Py_INCREF(key);
        Py_INCREF(value);
        result = pack(w, key) < 0 || pack(w, value) < 0 ? -1 : 0;
        Py_DECREF(key);
        Py_DECREF(value);
    }
    return result;
}

static int pack_container(writer *w, PyObject *value, unsigned long flags)
{
    int result;
    if (flags & Py_TPFLAGS_TUPLE_SUBCLASS) {
        return pack_tuple(w, value);
    }
    LOCK(value);
    result = flags & Py_TPFLAGS_DICT_SUBCLASS ? pack_dict(w, value) : pack_list(w, value);
    UNLOCK();
    return result;
}

static int pack_other(writer *w, PyObject *value)
{
    if (value == Py_None) {
        return checked(w, swx_frame_pack_nil(&w->core));
    }
    if (PyFloat_Check(value)) {
        return checked(w, swx_frame_pack_double(&w->core, PyFloat_AsDouble(value)));
    }
    if (PyByteArray_Check(value) || PyMemoryView_Check(value)) {
        return pack_buffer(w, value);
    }
    return refuse(w, "a value of type %U cannot go into a frame", value);
}

/* Recursion ends at max_depth, which the core checks when a container is opened. */
static int pack(writer *w, PyObject *value)
{
    unsigned long flags = PyType_GetFlags(Py_TYPE(value));
    if (flags & Py_TPFLAGS_UNICODE_SUBCLASS) {
        return pack_str(w, value);
    }
    if (flags & Py_TPFLAGS_LONG_SUBCLASS) {
        if (value == Py_True || value == Py_False) {
            return checked(w, swx_frame_pack_bool(&w->core, value == Py_True));
        }
        return pack_int(w, value);
    }
    if (flags & (Py_TPFLAGS_LIST_SUBCLASS | Py_TPFLAGS_TUPLE_SUBCLASS | Py_TPFLAGS_DICT_SUBCLASS)) {
        return pack_container(w, value, flags);
    }
    if (flags & Py_TPFLAGS_BYTES_SUBCLASS) {
        return pack_bytes(w, value);
    }
    return pack_other(w, value);
}

static PyObject *output_of(const swx_frame_encoder *core)
{
    size_t total = swx_frame_encoder_total(core);
    PyObject *result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total);
    if (!result) {
        return NULL;
    }
    uint8_t *out = (uint8_t *)PyBytes_AsString(result);
    if (total < LONG_COPY) {
        swx_frame_encoder_copy(core, out);
    } else {
        Py_BEGIN_ALLOW_THREADS
        swx_frame_encoder_copy(core, out);
        Py_END_ALLOW_THREADS
    }
    return result;
}

static PyObject *encode_with(writer *w, PyObject *value)
{
    PyObject *result = NULL;
    if (checked(w, swx_frame_begin(&w->core)) == 0 && pack(w, value) == 0 &&
        checked(w, swx_frame_end(&w->core)) == 0) {
        result = output_of(&w->core);
    }
    swx_frame_encoder_clear(&w->core);
    release_held(w);
    return result;
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
    FrameEncoder *self = (FrameEncoder *)object;
    if (!atomic_flag_test_and_set(&self->busy)) {
        PyObject *result = encode_with(&self->kept, value);
        atomic_flag_clear(&self->busy);
        return result;
    }
    writer own = { .error_type = self->error_type };
    swx_frame_encoder_init(&own.core, &self->limits, NULL); /* the limits were checked with the first one */
    PyObject *result = encode_with(&own, value);
    free_writer(&own);
    return result;
}

static PyObject *encoder_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    swx_frame_limits limits;
    if (read_limits(args, kwargs, &limits) < 0) {
        return NULL;
    }
    PyObject *object = allocate(type);
    if (!object) {
        return NULL;
    }
    FrameEncoder *self = (FrameEncoder *)object;
    atomic_flag_clear(&self->busy);
    swx_frame_encoder_init(&self->kept.core, &limits, NULL);
    self->limits = self->kept.core.limits;
    self->error_type = self->kept.error_type = frame_error_of(type);
    if (!self->error_type) {
        Py_CLEAR(object);
    }
    return object;
}

static int encoder_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((FrameEncoder *)object)->error_type);
    return 0;
}

static void encoder_dealloc(PyObject *object)
{
    FrameEncoder *self = (FrameEncoder *)object;
    PyObject_GC_UnTrack(object);
    free_writer(&self->kept);
    Py_CLEAR(self->error_type);
    deallocate(object);
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
    { Py_tp_dealloc, encoder_dealloc },
    { Py_tp_traverse, encoder_traverse },
    { Py_tp_methods, encoder_methods },
    { 0, NULL },
};

static PyType_Spec encoder_spec = {
    .name = "swerex_c._core.FrameEncoder",
    .basicsize = sizeof(FrameEncoder),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = encoder_slots,
};

/* ---- decoder ---- */

/* Frames say the same short words again and again, above all as keys: the last ones are kept, each in the one place
 * that its bytes choose.  That is half the time of a small frame: no new str, and its hash is known. */
enum { WORDS = 64, WORD_MAX = 24 };

typedef struct {
    PyObject *text; /* owned; NULL: none yet */
    uint8_t size;
    uint8_t bytes[WORD_MAX];
} word;

typedef struct {
    PyObject_HEAD
    PyObject *error_type;
    swx_frame_decoder core;
    atomic_flag busy; /* a call is at work; the collector may run other code in its middle */
    word words[WORDS]; /* only used by the call that has claimed the decoder */
} FrameDecoder;

/* What a build works with, and why it stopped, when it is the peer's fault. */
typedef struct {
    word *words; /* borrowed from the FrameDecoder */
    bool key_twice;
    const uint8_t *bad_text; /* first byte that is not UTF-8 */
} build_notes;

static void *make_nil(void *user)
{
    (void)user;
    return Py_NewRef(Py_None);
}

static void *make_bool(void *user, bool value)
{
    (void)user;
    return PyBool_FromLong(value);
}

static void *make_int(void *user, int64_t value)
{
    (void)user;
    return PyLong_FromLongLong(value);
}

static void *make_natural(void *user, uint64_t value)
{
    (void)user;
    return PyLong_FromUnsignedLongLong(value);
}

static void *make_float(void *user, double value)
{
    (void)user;
    return PyFloat_FromDouble(value);
}

/* Where in its bytes the UnicodeDecodeError that is set found the fault; clears it.  -1: it is another exception. */
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

/* The place of a word of 1 to WORD_MAX bytes. */
static word *place_of(word *words, const uint8_t *bytes, size_t size)
{
    return &words[(bytes[0] ^ bytes[size / 2] * 5u ^ bytes[size - 1] * 17u ^ size * 3u) % WORDS];
}

static void *make_str(void *user, const uint8_t *bytes, size_t size)
{
    build_notes *notes = user;
    word *kept = size - 1 < WORD_MAX ? place_of(notes->words, bytes, size) : NULL;
    if (kept && kept->text && kept->size == size && memcmp(kept->bytes, bytes, size) == 0) {
        return Py_NewRef(kept->text);
    }
    PyObject *text = PyUnicode_FromStringAndSize((const char *)bytes, (Py_ssize_t)size);
    if (!text) {
        Py_ssize_t fault = decode_fault();
        notes->bad_text = fault < 0 ? NULL : bytes + fault;
    } else if (kept) {
        Py_XDECREF(kept->text);
        kept->text = Py_NewRef(text);
        kept->size = (uint8_t)size;
        memcpy(kept->bytes, bytes, size);
    }
    return text;
}

static void *make_bytes(void *user, const uint8_t *bytes, size_t size)
{
    (void)user;
    PyObject *result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (result) {
        copy_bytes((uint8_t *)PyBytes_AsString(result), bytes, size);
    }
    return result;
}

static void *make_list(void *user, uint32_t count)
{
    (void)user;
    return PyList_New((Py_ssize_t)count);
}

static bool list_set(void *user, void *list, uint32_t index, void *value)
{
    (void)user;
    return PyList_SetItem(list, (Py_ssize_t)index, value) == 0;
}

static void *make_dict(void *user, uint32_t count)
{
    (void)user, (void)count;
    return PyDict_New();
}

static bool dict_set(void *user, void *dict, uint32_t index, void *key, void *value)
{
    build_notes *notes = user;
    int result = PyDict_SetItem(dict, key, value);
    Py_DECREF((PyObject *)key);
    Py_DECREF((PyObject *)value);
    notes->key_twice = result == 0 && PyDict_Size(dict) != (Py_ssize_t)index + 1;
    return result == 0 && !notes->key_twice;
}

static void drop(void *user, void *value)
{
    (void)user;
    Py_DECREF((PyObject *)value);
}

static const swx_frame_builder OBJECTS = {
    .nil = make_nil, .boolean = make_bool, .integer = make_int, .natural = make_natural, .number = make_float,
    .str = make_str, .bin = make_bytes, .array = make_list, .array_set = list_set, .map = make_dict,
    .map_set = dict_set, .drop = drop,
};

static swx_status take(swx_frame_decoder *core, const uint8_t **bytes, size_t *size, swx_span *payload)
{
    swx_status status;
    if (*size < LONG_COPY) {
        return swx_frame_take(core, bytes, size, payload);
    }
    Py_BEGIN_ALLOW_THREADS
    status = swx_frame_take(core, bytes, size, payload);
    Py_END_ALLOW_THREADS
    return status;
}

/* The payload as an object; on failure the decoder is stopped and says why. */
static PyObject *build(FrameDecoder *self, swx_span payload)
{
    swx_frame_decoder *core = &self->core;
    build_notes notes = { .words = self->words };
    void *value;
    size_t start = (size_t)core->position - payload.size;
    if (swx_frame_build(payload.bytes, payload.size, &OBJECTS, &notes, &value) == SWX_OK) {
        return value;
    }
    core->error = (swx_error){ .status = SWX_ENOMEM, .text = "out of memory" };
    if (notes.key_twice) {
        core->error = (swx_error){ .status = SWX_EFORMAT,
                                   .text = "a map has the same key twice",
                                   .position = start };
    } else if (notes.bad_text) {
        core->error = (swx_error){ .status = SWX_EFORMAT,
                                   .text = "a str is not valid UTF-8",
                                   .position = start + (size_t)(notes.bad_text - payload.bytes) };
    }
    PyErr_Clear();
    return NULL;
}

/* Appends the frames of a chunk to the list.  0, or -1: the core's error, or an exception that is set. */
static int decode_into(FrameDecoder *self, PyObject *chunk, PyObject *frames)
{
    swx_frame_decoder *core = &self->core;
    char *data;
    Py_ssize_t length;
    swx_span payload;
    swx_status status;
    if (PyBytes_AsStringAndSize(chunk, &data, &length) < 0) {
        return -1;
    }
    const uint8_t *bytes = (const uint8_t *)data;
    size_t size = (size_t)length;
    while ((status = take(core, &bytes, &size, &payload)) == SWX_OK) {
        PyObject *value = build(self, payload);
        if (!value) {
            return -1;
        }
        int appended = PyList_Append(frames, value);
        Py_DECREF(value);
        if (appended < 0) {
            core->error = (swx_error){ .status = SWX_ENOMEM, .text = "out of memory" };
            return -1;
        }
    }
    return status == SWX_MORE ? 0 : -1;
}

/* A new reference to bytes with the chunk's contents.  Only bytes are used as they are: what scanned well must not
 * be changed by another thread before it is built. */
static PyObject *to_bytes(PyObject *chunk)
{
    if (PyBytes_CheckExact(chunk)) {
        return Py_NewRef(chunk);
    }
    if (!PyObject_CheckBuffer(chunk)) {
        PyErr_SetString(PyExc_TypeError, "feed() takes a bytes-like object");
        return NULL;
    }
    return PyBytes_FromObject(chunk);
}

/* Claims the decoder for a call.  0, or -1 with RuntimeError set. */
static int claim(FrameDecoder *self)
{
    if (atomic_flag_test_and_set(&self->busy)) {
        PyErr_SetString(PyExc_RuntimeError, "the FrameDecoder is in use by another call");
        return -1;
    }
    return 0;
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
    PyObject *chunk = to_bytes(data), *frames = NULL;
    if (!chunk || claim(self) < 0) {
        Py_XDECREF(chunk);
        return NULL;
    }
    frames = PyList_New(0);
    if (frames && decode_into(self, chunk, frames) < 0) {
        if (!PyErr_Occurred()) {
            set_core_error(self->error_type, &self->core.error, frames);
        }
        Py_CLEAR(frames);
    }
    atomic_flag_clear(&self->busy);
    Py_DECREF(chunk);
    return frames;
}

PyDoc_STRVAR(reset_doc,
"reset($self, /)\n--\n\n"
"Forgets the stream and its error; the next byte is the first of a new stream.");

static PyObject *decoder_reset(PyObject *object, PyObject *unused)
{
    FrameDecoder *self = (FrameDecoder *)object;
    (void)unused;
    if (claim(self) < 0) {
        return NULL;
    }
    swx_frame_decoder_reset(&self->core);
    atomic_flag_clear(&self->busy);
    return Py_NewRef(Py_None);
}

static PyObject *decoder_pending(PyObject *object, void *closure)
{
    FrameDecoder *self = (FrameDecoder *)object;
    (void)closure;
    if (claim(self) < 0) {
        return NULL;
    }
    size_t pending = swx_frame_decoder_pending(&self->core);
    atomic_flag_clear(&self->busy);
    return PyLong_FromSize_t(pending);
}

static PyObject *decoder_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    swx_frame_limits limits;
    if (read_limits(args, kwargs, &limits) < 0) {
        return NULL;
    }
    PyObject *object = allocate(type);
    if (!object) {
        return NULL;
    }
    FrameDecoder *self = (FrameDecoder *)object;
    atomic_flag_clear(&self->busy);
    swx_frame_decoder_init(&self->core, &limits, NULL);
    self->error_type = frame_error_of(type);
    if (!self->error_type) {
        Py_CLEAR(object);
    }
    return object;
}

static int decoder_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((FrameDecoder *)object)->error_type);
    return 0;
}

static void decoder_dealloc(PyObject *object)
{
    FrameDecoder *self = (FrameDecoder *)object;
    PyObject_GC_UnTrack(object);
    swx_frame_decoder_free(&self->core);
    for (size_t i = 0; i < WORDS; i++) {
        Py_CLEAR(self->words[i].text);
    }
    Py_CLEAR(self->error_type);
    deallocate(object);
}

PyDoc_STRVAR(decoder_doc,
"FrameDecoder(*, max_frame=67108864, max_depth=32, max_items=1000000)\n--\n\n"
"Takes the frames that a FrameEncoder makes out of a byte stream, however it is cut.\n\n"
"The limits mean what they mean there, and are checked before anything is built; memory grows with bytes that came,\n"
"not with a length that was announced. Refused too: ext types, map keys that are not str or come twice, str that is\n"
"not UTF-8, and a payload that is not exactly one value.");

static PyMethodDef decoder_methods[] = {
    { "feed", decoder_feed, METH_O, feed_doc },
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
    { Py_tp_traverse, decoder_traverse },
    { Py_tp_methods, decoder_methods },
    { Py_tp_getset, decoder_getset },
    { 0, NULL },
};

static PyType_Spec decoder_spec = {
    .name = "swerex_c._core.FrameDecoder",
    .basicsize = sizeof(FrameDecoder),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
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
    return PyModule_AddStringConstant(module, "msgpack_version", swx_frame_msgpack_version());
}
