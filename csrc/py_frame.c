/* Frames for Python.  The encoder walks Python objects straight into the core's output, the decoder's builder makes
 * them straight from the payload; neither has a tree of its own in between. */
#include "py_frame.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "swx_alloc.h"
#include "swx_frame.h"

enum {
    REFERRED = 2 * 1024,  /* bytes from which on a str or bin is not copied before the frame is put together */
    LONG_COPY = 64 * 1024 /* bytes from which on letting other threads run is worth its cost */
};

/* Where there is no GIL, containers are locked while they are walked, and their members kept, because the lock on one
 * may be let go of while that on another is waited for; a claim is between threads that run at once.  Where there is
 * one, other code runs in the middle of a buffer that has __buffer__, and in finalizers when an exception is made: what
 * is used after that is kept.  A claim is there for a call that comes from such code, or while another has let go of the
 * GIL. */
#ifdef Py_GIL_DISABLED
#define LOCK(object) Py_BEGIN_CRITICAL_SECTION(object)
#define UNLOCK() Py_END_CRITICAL_SECTION()
#define KEEP(object) Py_INCREF(object)
#define LET_GO(object) Py_DECREF(object)
typedef atomic_flag claimed;
static bool claim(claimed *flag) { return !atomic_flag_test_and_set(flag); }
static void unclaim(claimed *flag) { atomic_flag_clear(flag); }
#else
#define LOCK(object) {
#define UNLOCK() }
#define KEEP(object) (void)(object)
#define LET_GO(object) (void)(object)
typedef bool claimed;
static bool claim(claimed *flag) { return *flag ? false : (*flag = true); }
static void unclaim(claimed *flag) { *flag = false; }
#endif

/* Keeps a frequent path short. */
#define RARE __attribute__((noinline))

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
    claimed busy;
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

static RARE int failed(writer *w)
{
    if (w->core.error.status == SWX_OK) {
        PyErr_NoMemory(); /* swx_frame_begin: no frame is open that could hold the error */
    } else {
        set_core_error(w->error_type, &w->core.error, NULL);
    }
    return -1;
}

/* Turns a status of the core into 0, or -1 with the exception set. */
static inline int checked(writer *w, swx_status status) { return status == SWX_OK ? 0 : failed(w); }

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
static RARE int pack_owned(writer *w, PyObject *owner, const char *bytes, Py_ssize_t size, pack_function refer)
{
    held *h = hold(w);
    if (!h) {
        return -1;
    }
    h->owner = Py_NewRef(owner);
    return checked(w, refer(&w->core, bytes, (size_t)size));
}

static RARE int refuse_text(writer *w, PyObject *value)
{
    if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) {
        return -1;
    }
    Py_INCREF(value); /* until now the exception has kept it, and finalizers may have run when that was made */
    PyErr_Clear();
    refuse(w, "a value of type %U holds a surrogate, which UTF-8 cannot carry", value);
    Py_DECREF(value);
    return -1;
}

static int pack_str(writer *w, PyObject *value)
{
    Py_ssize_t size;
    const char *text = PyUnicode_AsUTF8AndSize(value, &size);
    if (!text) {
        return refuse_text(w, value);
    }
    if (size >= REFERRED) {
        return pack_owned(w, value, text, size, swx_frame_pack_str_ref);
    }
    return checked(w, swx_frame_pack_str(&w->core, text, (size_t)size));
}

static RARE int pack_bytes(writer *w, PyObject *value)
{
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(value, &bytes, &size) < 0) {
        return -1;
    }
    if (size >= REFERRED) {
        return pack_owned(w, value, bytes, size, swx_frame_pack_bin_ref);
    }
    return checked(w, swx_frame_pack_bin(&w->core, bytes, (size_t)size));
}

static int pack_buffer(writer *w, PyObject *value)
{
    Py_buffer view;
    Py_INCREF(value); /* its __buffer__ may take it out of what holds it */
    int result = PyObject_GetBuffer(value, &view, PyBUF_SIMPLE);
    if (result < 0 && (PyErr_ExceptionMatches(PyExc_BufferError) || PyErr_ExceptionMatches(PyExc_ValueError))) {
        PyErr_Clear();
        refuse(w, "a value of type %U is released or not contiguous", value);
    }
    Py_DECREF(value);
    if (result < 0) {
        return -1;
    }
    if (view.len < REFERRED) {
        result = checked(w, swx_frame_pack_bin(&w->core, view.buf, (size_t)view.len));
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

static RARE int pack_int(writer *w, PyObject *value)
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

static RARE int refuse_change(writer *w, PyObject *value)
{
    return refuse(w, "a value of type %U changed while it was encoded", value);
}

static int pack_list(writer *w, PyObject *list)
{
    Py_ssize_t size = PyList_Size(list);
    int result = checked(w, swx_frame_pack_array(&w->core, (size_t)size));
    for (Py_ssize_t i = 0; i < size && result == 0; i++) {
        PyObject *item = PyList_GetItem(list, i);
        if (!item) {
            PyErr_Clear();
            return refuse_change(w, list);
        }
        KEEP(item);
        result = pack(w, item);
        LET_GO(item);
    }
    return result == 0 && PyList_Size(list) != size ? refuse_change(w, list) : result;
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
    Py_ssize_t position = 0, left = PyDict_Size(dict);
    int result = checked(w, swx_frame_pack_map(&w->core, (size_t)left));
    while (result == 0 && PyDict_Next(dict, &position, &key, &value)) {
        if (--left < 0) {
            break;
        }
        KEEP(key);
        KEEP(value);
        result = pack(w, key) < 0 || pack(w, value) < 0 ? -1 : 0;
        LET_GO(key);
        LET_GO(value);
    }
    return result == 0 && left ? refuse_change(w, dict) : result;
}

static RARE int pack_container(writer *w, PyObject *value, unsigned long flags)
{
    int result;
    Py_INCREF(value); /* a member may take it out of what holds it */
    if (flags & Py_TPFLAGS_TUPLE_SUBCLASS) {
        result = pack_tuple(w, value);
    } else {
        LOCK(value);
        result = flags & Py_TPFLAGS_DICT_SUBCLASS ? pack_dict(w, value) : pack_list(w, value);
        UNLOCK();
    }
    Py_DECREF(value);
    return result;
}

static RARE int pack_other(writer *w, PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    if (value == Py_None) {
        return checked(w, swx_frame_pack_nil(&w->core));
    }
    if (type == &PyBool_Type) {
        return checked(w, swx_frame_pack_bool(&w->core, value == Py_True));
    }
    unsigned long flags = PyType_GetFlags(type);
    if (flags & Py_TPFLAGS_UNICODE_SUBCLASS) {
        return pack_str(w, value);
    }
    if (flags & Py_TPFLAGS_LONG_SUBCLASS) {
        return pack_int(w, value);
    }
    if (flags & (Py_TPFLAGS_LIST_SUBCLASS | Py_TPFLAGS_TUPLE_SUBCLASS | Py_TPFLAGS_DICT_SUBCLASS)) {
        return pack_container(w, value, flags);
    }
    if (flags & Py_TPFLAGS_BYTES_SUBCLASS) {
        return pack_bytes(w, value);
    }
    if (PyFloat_Check(value)) {
        return checked(w, swx_frame_pack_double(&w->core, PyFloat_AsDouble(value)));
    }
    if (PyByteArray_Check(value) || PyMemoryView_Check(value)) {
        return pack_buffer(w, value);
    }
    return refuse(w, "a value of type %U cannot go into a frame", value);
}

/* The most frequent first.  Recursion ends at max_depth, which the core checks when a container is opened. */
static int pack(writer *w, PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    if (type == &PyUnicode_Type) {
        return pack_str(w, value);
    }
    if (type == &PyLong_Type) {
        return pack_int(w, value);
    }
    return pack_other(w, value);
}

static PyObject *output_of(const swx_frame_encoder *core)
{
    size_t total = swx_frame_encoder_total(core);
    if (!core->ref_count && total < LONG_COPY) {
        return PyBytes_FromStringAndSize((const char *)core->data, (Py_ssize_t)total);
    }
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
    if (claim(&self->busy)) {
        PyObject *result = encode_with(&self->kept, value);
        unclaim(&self->busy);
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
    unclaim(&self->busy);
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

/* Frames say the same short words again and again, above all as keys: the last ones are kept, each in one of the two
 * places that its bytes choose.  No new str, and its hash is known.  A word is compared as up to three numbers, which
 * for one size are the same only if its bytes are. */
enum { WORD_PAIRS = 64, WORD_MAX = 24 };

typedef struct {
    uint64_t head, middle, tail;
    size_t size;
} word_bytes;

typedef struct {
    PyObject *text; /* owned; NULL: none yet */
    word_bytes bytes;
} word;

typedef struct {
    PyObject_HEAD
    PyObject *error_type;
    swx_frame_decoder core;
    claimed busy;   /* a call is at work; the collector may run other code in its middle */
    PyObject *seed; /* see new_ascii; NULL: does not work here */
    word words[WORD_PAIRS][2]; /* the last one first; only used by the call that has claimed the decoder */
} FrameDecoder;

/* What a build works with, and why it stopped, when it is the peer's fault. */
typedef struct {
    word (*words)[2]; /* borrowed from the FrameDecoder */
    PyObject *seed;   /* borrowed, too */
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

/* ---- text ----
 *
 * The limited API makes a str out of bytes only by looking at 8 of them at a time first, and then copying them.  For long
 * text in ASCII that takes up to twice the time of copying blocks of it and looking at each on the way, for which there
 * has to be a str to copy into.  PyUnicode_Resize makes one of a short one that others refer to, and
 * its bytes, as long as it is in ASCII only, are the very ones that PyUnicode_AsUTF8AndSize shows.  Nobody promises the
 * latter, so each decoder tries it. */
static const char SEED[] = "xx";

enum { IN_PLACE = 1536, IN_PLACE_TRIAL = 100 };

/* A str of `size` characters, more than the seed has, all ASCII, which the caller has yet to write to *bytes.  NULL:
 * MemoryError is set. */
static PyObject *new_ascii(PyObject *seed, Py_ssize_t size, uint8_t **bytes)
{
#ifdef Py_LIMITED_API
    Py_ssize_t length;
    PyObject *text = Py_NewRef(seed);
    if (PyUnicode_Resize(&text, size) < 0 ||
        !(*bytes = (uint8_t *)(uintptr_t)PyUnicode_AsUTF8AndSize(text, &length))) {
        Py_CLEAR(text);
    }
#else
    (void)seed;
    PyObject *text = PyUnicode_New(size, 0x7f);
    if (text) {
        *bytes = PyUnicode_1BYTE_DATA(text);
    }
#endif
    return text;
}

/* Whether what is written to new_ascii's bytes is in the str and nowhere else, by all that tells: 1 or 0, or -1 with an
 * exception. */
static int writes_in_place(PyObject *seed)
{
    char pattern[IN_PLACE_TRIAL];
    uint8_t *bytes;
    for (size_t i = 0; i < sizeof(pattern); i++) {
        pattern[i] = (char)('0' + i % 50);
    }
    PyObject *same = PyUnicode_FromStringAndSize(pattern, sizeof(pattern));
    PyObject *made = same ? new_ascii(seed, sizeof(pattern), &bytes) : NULL;
    int works = -1;
    if (made) {
        memcpy(bytes, pattern, sizeof(pattern));
        works = made != seed && PyUnicode_CompareWithASCIIString(seed, SEED) == 0 &&
                PyUnicode_GetLength(made) == (Py_ssize_t)sizeof(pattern) &&
                PyUnicode_ReadChar(made, sizeof(pattern) - 1) == (Py_UCS4)pattern[sizeof(pattern) - 1] &&
                PyObject_Hash(made) == PyObject_Hash(same) && PyUnicode_Compare(made, same) == 0;
    }
    Py_XDECREF(same);
    Py_XDECREF(made);
    return works;
}

/* 0, or -1 with an exception. */
static int plant_seed(PyObject **seed)
{
    *seed = PyUnicode_FromString(SEED);
    int works = *seed ? writes_in_place(*seed) : -1;
    if (works < 1) {
        Py_CLEAR(*seed);
    }
    return works < 0 ? -1 : 0;
}

static uint64_t load8(const uint8_t *bytes)
{
    uint64_t number;
    memcpy(&number, bytes, sizeof(number));
    return number;
}

static uint32_t load4(const uint8_t *bytes)
{
    uint32_t number;
    memcpy(&number, bytes, sizeof(number));
    return number;
}

/* Of 1 to WORD_MAX bytes. */
static inline word_bytes word_of(const uint8_t *bytes, size_t size)
{
    word_bytes w = { .size = size };
    if (size >= 8) {
        w.head = load8(bytes);
        w.middle = size > 16 ? load8(bytes + 8) : 0;
        w.tail = load8(bytes + size - 8);
    } else if (size >= 4) {
        w.head = load4(bytes);
        w.tail = load4(bytes + size - 4);
    } else {
        w.head = (uint64_t)bytes[0] << 16 | (uint64_t)bytes[size / 2] << 8 | bytes[size - 1];
    }
    return w;
}

static inline bool same_word(word_bytes a, word_bytes b)
{
    return a.head == b.head && a.tail == b.tail && a.middle == b.middle && a.size == b.size;
}

static inline word *places_of(word (*words)[2], word_bytes w)
{
    uint64_t mixed = (w.head + (w.tail << 7) + w.middle + w.size) * UINT64_C(0x9e3779b97f4a7c15);
    return words[mixed >> 40 & (WORD_PAIRS - 1)];
}

static RARE void *fail_text(build_notes *notes, const uint8_t *bytes)
{
    Py_ssize_t fault = decode_fault();
    notes->bad_text = fault < 0 ? NULL : bytes + fault;
    return NULL;
}

/* A str that is no word. */
static RARE void *make_text(build_notes *notes, const uint8_t *bytes, size_t size)
{
    if (notes->seed && size >= IN_PLACE && bytes[0] < 0x80) {
        uint8_t *out;
        PyObject *text = new_ascii(notes->seed, (Py_ssize_t)size, &out);
        if (!text || swx_frame_copy_ascii(out, bytes, size)) {
            return text;
        }
        Py_DECREF(text);
    }
    PyObject *text = PyUnicode_FromStringAndSize((const char *)bytes, (Py_ssize_t)size);
    return text ? text : fail_text(notes, bytes);
}

/* A str for the first of a word's places. */
static RARE void *make_word(build_notes *notes, word *places, const uint8_t *bytes, size_t size)
{
    PyObject *text = PyUnicode_FromStringAndSize((const char *)bytes, (Py_ssize_t)size);
    if (!text) {
        return fail_text(notes, bytes);
    }
    PyObject *forgotten = places[1].text;
    places[1] = places[0];
    places[0] = (word){ Py_NewRef(text), word_of(bytes, size) };
    Py_XDECREF(forgotten);
    return text;
}

static void *make_str(void *user, const uint8_t *bytes, size_t size)
{
    build_notes *notes = user;
    if (size - 1 >= WORD_MAX) {
        return make_text(notes, bytes, size);
    }
    word_bytes w = word_of(bytes, size);
    word *places = places_of(notes->words, w);
    if (same_word(places[0].bytes, w)) { /* a size of 0 is none's */
        return Py_NewRef(places[0].text);
    }
    if (same_word(places[1].bytes, w)) {
        return Py_NewRef(places[1].text);
    }
    return make_word(notes, places, bytes, size);
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
    (void)user, (void)index;
    int result = PyDict_SetItem(dict, key, value);
    Py_DECREF((PyObject *)key);
    Py_DECREF((PyObject *)value);
    return result == 0;
}

static bool dict_end(void *user, void *dict, uint32_t count)
{
    build_notes *notes = user;
    notes->key_twice = PyDict_Size(dict) != (Py_ssize_t)count;
    return !notes->key_twice;
}

static void drop(void *user, void *value)
{
    (void)user;
    Py_DECREF((PyObject *)value);
}

static const swx_frame_builder OBJECTS = {
    .nil = make_nil, .boolean = make_bool, .integer = make_int, .natural = make_natural, .number = make_float,
    .str = make_str, .bin = make_bytes, .array = make_list, .array_set = list_set, .map = make_dict,
    .map_set = dict_set, .map_end = dict_end, .drop = drop,
};

/* A long chunk of bytes is copied without the GIL; others may change what is in a buffer. */
static swx_status take(swx_frame_decoder *core, const uint8_t **bytes, size_t *size, swx_span *payload)
{
    swx_status status;
    if (*size < LONG_COPY || core->copies) {
        return swx_frame_take(core, bytes, size, payload);
    }
    Py_BEGIN_ALLOW_THREADS
    status = swx_frame_take(core, bytes, size, payload);
    Py_END_ALLOW_THREADS
    return status;
}

/* The payload as an object; NULL: err says why not, and no exception is set. */
static PyObject *build(FrameDecoder *self, swx_span payload, swx_error *err)
{
    build_notes notes = { .words = self->words, .seed = self->seed };
    void *value;
    swx_status status = swx_frame_build(payload.bytes, payload.size, &self->core.limits, &OBJECTS, &notes, &value, err);
    if (status == SWX_OK) {
        return value;
    }
    PyErr_Clear();
    if (status != SWX_EINVAL) {
        return NULL;
    }
    if (notes.key_twice) {
        *err = (swx_error){ .status = SWX_EFORMAT, .text = "a map has the same key twice" };
    } else if (notes.bad_text) {
        *err = (swx_error){ .status = SWX_EFORMAT,
                            .text = "a str is not valid UTF-8",
                            .position = (size_t)(notes.bad_text - payload.bytes) };
    } else {
        *err = (swx_error){ .status = SWX_ENOMEM, .text = "out of memory" };
    }
    return NULL;
}

/* A new list of the first value, which it takes over. */
static PyObject *list_of(PyObject *first)
{
    PyObject *list = PyList_New(1);
    if (list) {
        PyList_SetItem(list, 0, first);
    } else {
        Py_DECREF(first);
    }
    return list;
}

static int append(PyObject **frames, PyObject *value)
{
    if (!*frames) {
        *frames = list_of(value);
        return *frames ? 0 : -1;
    }
    int result = PyList_Append(*frames, value);
    Py_DECREF(value);
    return result;
}

/* Appends the frames of a chunk to the list, which is made with the first.  0, or -1: core->error, or an exception. */
static int decode_into(FrameDecoder *self, const uint8_t *bytes, size_t size, PyObject **frames)
{
    swx_frame_decoder *core = &self->core;
    swx_span payload;
    swx_status status;
    while ((status = take(core, &bytes, &size, &payload)) == SWX_OK) {
        swx_error err;
        PyObject *value = build(self, payload, &err);
        if (!value) {
            swx_frame_stop(core, payload, &err);
            return -1;
        }
        if (append(frames, value) < 0) {
            swx_fail(&err, SWX_ENOMEM, "out of memory");
            swx_frame_stop(core, payload, &err);
            return -1;
        }
    }
    return status == SWX_MORE ? 0 : -1;
}

/* What a call was given: the contents of a bytes object, which never change, or a buffer, whose do. */
typedef struct {
    const uint8_t *bytes;
    size_t size;
    PyObject *owner; /* a reference; NULL: view is held */
    Py_buffer view;
} chunk;

/* 0, or -1 with an exception; as_buffer: what is no bytes object is not copied to one, unless it has gaps. */
static int open_chunk(PyObject *data, bool as_buffer, chunk *c)
{
    c->owner = NULL;
    if (PyBytes_CheckExact(data)) {
        c->owner = Py_NewRef(data);
    } else if (!PyObject_CheckBuffer(data)) {
        PyErr_SetString(PyExc_TypeError, "a frame is decoded from a bytes-like object");
        return -1;
    } else if (as_buffer && PyObject_GetBuffer(data, &c->view, PyBUF_SIMPLE) == 0) {
        c->bytes = c->view.buf;
        c->size = (size_t)c->view.len;
        return 0;
    } else {
        PyErr_Clear();
        c->owner = PyBytes_FromObject(data);
    }
    char *bytes;
    Py_ssize_t size;
    if (!c->owner || PyBytes_AsStringAndSize(c->owner, &bytes, &size) < 0) {
        Py_XDECREF(c->owner);
        return -1;
    }
    c->bytes = (const uint8_t *)bytes;
    c->size = (size_t)size;
    return 0;
}

static void close_chunk(chunk *c)
{
    if (c->owner) {
        Py_DECREF(c->owner);
    } else {
        PyBuffer_Release(&c->view);
    }
}

/* Claims the decoder for a call.  0, or -1 with RuntimeError set. */
static int claim_decoder(FrameDecoder *self)
{
    if (!claim(&self->busy)) {
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
    PyObject *frames = NULL;
    chunk c;
    if (open_chunk(data, true, &c) < 0) {
        return NULL;
    }
    if (claim_decoder(self) == 0) {
        self->core.copies = !c.owner;
        int result = decode_into(self, c.bytes, c.size, &frames);
        if (!frames) {
            frames = PyList_New(0);
        }
        if (result < 0 && frames) {
            if (!PyErr_Occurred()) {
                set_core_error(self->error_type, &self->core.error, frames);
            }
            Py_CLEAR(frames);
        }
        unclaim(&self->busy);
    }
    close_chunk(&c);
    return frames;
}

PyDoc_STRVAR(decode_doc,
"decode($self, frame, /)\n--\n\n"
"The value of one frame (bytes-like, its length included), as encode() makes it.\n\n"
"Has nothing to do with the stream of feed(). Raises FrameError when `frame` is not exactly one frame that feed() would\n"
"take; its `position` is the byte of `frame`. Not for use by two threads at once (RuntimeError).");

static PyObject *decode_chunk(FrameDecoder *self, const chunk *c)
{
    swx_error err;
    swx_span payload;
    PyObject *value = NULL;
    if (swx_frame_open(c->bytes, c->size, &self->core.limits, &payload, &err) == SWX_OK) {
        value = build(self, payload, &err);
        err.position += SWX_FRAME_HEADER;
    }
    if (!value) {
        set_core_error(self->error_type, &err, NULL);
    }
    return value;
}

static PyObject *decoder_decode(PyObject *object, PyObject *data)
{
    FrameDecoder *self = (FrameDecoder *)object;
    PyObject *value = NULL;
    chunk c;
    if (open_chunk(data, false, &c) < 0) {
        return NULL;
    }
    if (claim_decoder(self) == 0) {
        value = decode_chunk(self, &c);
        unclaim(&self->busy);
    }
    close_chunk(&c);
    return value;
}

PyDoc_STRVAR(reset_doc,
"reset($self, /)\n--\n\n"
"Forgets the stream and its error; the next byte is the first of a new stream.");

static PyObject *decoder_reset(PyObject *object, PyObject *unused)
{
    FrameDecoder *self = (FrameDecoder *)object;
    (void)unused;
    if (claim_decoder(self) < 0) {
        return NULL;
    }
    swx_frame_decoder_reset(&self->core);
    unclaim(&self->busy);
    return Py_NewRef(Py_None);
}

static PyObject *decoder_pending(PyObject *object, void *closure)
{
    FrameDecoder *self = (FrameDecoder *)object;
    (void)closure;
    if (claim_decoder(self) < 0) {
        return NULL;
    }
    size_t pending = swx_frame_decoder_pending(&self->core);
    unclaim(&self->busy);
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
    unclaim(&self->busy);
    swx_frame_decoder_init(&self->core, &limits, NULL);
    self->error_type = frame_error_of(type);
    if (!self->error_type || plant_seed(&self->seed) < 0) {
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
    for (size_t i = 0; i < WORD_PAIRS; i++) {
        Py_CLEAR(self->words[i][0].text);
        Py_CLEAR(self->words[i][1].text);
    }
    Py_CLEAR(self->seed);
    Py_CLEAR(self->error_type);
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
