/* Output as a str, made where it is asked for, or, when it is long, beside the event loop. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "py_text.h"
#include "swx_alloc.h"
#include "swx_strip.h"

enum { STACK = 256 * 1024 };

static bool is_ascii(const uint8_t *bytes, size_t size)
{
    uint64_t all = 0;
    size_t i = 0;
    for (; i + sizeof(all) <= size && !(all & UINT64_C(0x8080808080808080));) {
        size_t end = size - i < 4096 ? i + (size - i) / sizeof(all) * sizeof(all) : i + 4096;
        for (; i < end; i += sizeof(all)) {
            uint64_t word;
            memcpy(&word, bytes + i, sizeof(word));
            all |= word;
        }
    }
    for (; i < size; i++) {
        all |= bytes[i];
    }
    return !(all & UINT64_C(0x8080808080808080));
}

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

/* ---- beside the loop ------------------------------------------------------------------------------------------- */

/* The loop's thread makes a str with nothing in it, a thread without the GIL fills it, and the loop's thread takes it. */
struct swx_py_making {
    swx_flight landing; /* first */
    swx_flight *of;     /* keeps the buffer */
    const swx_buf *buf;
    bool crlf, ascii;
    PyObject *str;      /* nobody else knows it; NULL once it was taken */
    uint8_t *letters;   /* of it */
    size_t size;        /* of what was written there */
};

/* A new str of that many letters, all in ASCII, and where they lie.  NULL without an exception: there is no memory, or this
 * interpreter's texts are not made like that. */
static PyObject *new_ascii(size_t size, uint8_t **letters)
{
    Py_ssize_t known = 0;
    PyObject *str = size > 2 && size <= PY_SSIZE_T_MAX / 2 ? PyUnicode_FromStringAndSize("ab", 2) : NULL;
    if (str && PyUnicode_Resize(&str, (Py_ssize_t)size) == 0) {
        const char *at = PyUnicode_AsUTF8AndSize(str, &known);
        if (at && known == (Py_ssize_t)size && memcmp(at, "ab", 2) == 0) {
            *letters = (uint8_t *)(uintptr_t)at;
            return str;
        }
    }
    Py_XDECREF(str);
    PyErr_Clear();
    return NULL;
}

/* Whether a str is what was written to its letters, also when it is made shorter after that. */
static bool can_fill(void)
{
    static _Atomic int known; /* 0: not yet; 1: yes; -1: no */
    char wanted[600];
    uint8_t *letters;
    PyObject *str = known ? NULL : new_ascii(2 * sizeof(wanted), &letters);
    if (!known) {
        memset(wanted, 'x', sizeof(wanted) - 1);
        wanted[sizeof(wanted) - 1] = 0;
        if (str) {
            memcpy(letters, wanted, sizeof(wanted));
        }
        bool same = str && PyUnicode_Resize(&str, sizeof(wanted) - 1) == 0 && PyUnicode_CompareWithASCIIString(str, wanted) == 0;
        known = same ? 1 : -1;
        Py_XDECREF(str);
        PyErr_Clear();
    }
    return known > 0;
}

static void making_destroy(swx_flight *landing)
{
    swx_py_making *making = (swx_py_making *)landing;
    swx_flight_unref(making->of);
    swx_free(making);
}

static void *fill(void *argument)
{
    swx_py_making *making = argument;
    making->size = write_plain(making->buf, making->crlf, making->letters);
    making->ascii = is_ascii(making->letters, making->size);
    swx_flight_landed(&making->landing);
    return NULL;
}

static bool start_thread(swx_py_making *making)
{
    pthread_t thread;
    pthread_attr_t how;
    sigset_t all, before;
    if (pthread_attr_init(&how) != 0) {
        return false;
    }
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the application's signals are for its own threads */
    bool started = pthread_attr_setstacksize(&how, STACK) == 0 && pthread_attr_setdetachstate(&how, PTHREAD_CREATE_DETACHED) == 0 &&
                   pthread_create(&thread, &how, fill, making) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&how);
    return started;
}

swx_py_making *swx_py_making_begin(swx_flight *of, const swx_buf *buf, bool crlf, swx_waker *waker, PyObject *future)
{
    char note[80];
    swx_py_making *making = can_fill() ? swx_calloc(1, sizeof(*making)) : NULL;
    PyObject *str = making ? new_ascii(buf->size + note_of(buf, note), &making->letters) : NULL;
    if (!str) {
        swx_free(making);
        return NULL;
    }
    atomic_fetch_add(&of->references, 1);
    swx_waker_ref(waker);
    making->of = of;
    making->buf = buf;
    making->crlf = crlf;
    making->str = str;
    making->landing.destroy = making_destroy;
    making->landing.waker = waker;
    making->landing.future = future;
    atomic_init(&making->landing.references, 2); /* the caller's, and the thread's until it is taken from the waker */
    if (!start_thread(making)) {
        atomic_store(&making->landing.references, 1);
        Py_DECREF(str);
        swx_flight_unref(&making->landing);
        return NULL;
    }
    return making;
}

bool swx_py_making_done(const swx_py_making *making) { return atomic_load(&making->landing.done); }

PyObject *swx_py_making_end(swx_py_making *making)
{
    PyObject *str = making->str, *text = NULL;
    if (!str) {
        return PyErr_NoMemory(); /* as it was said the first time */
    }
    making->str = NULL;
    if (!making->ascii) {
        text = decode(making->letters, making->size);
    } else if (PyUnicode_Resize(&str, (Py_ssize_t)making->size) == 0) {
        text = Py_NewRef(str);
    }
    Py_XDECREF(str);
    return text;
}

void swx_py_making_drop(swx_py_making *making, bool forked)
{
    making->landing.future = NULL;
    if (forked) { /* its thread is the parent's */
        return;
    }
    if (!swx_py_making_done(making)) {
        Py_BEGIN_ALLOW_THREADS
        while (!swx_py_making_done(making)) {
            sched_yield();
        }
        Py_END_ALLOW_THREADS
    }
    Py_XDECREF(making->str);
    making->str = NULL;
    swx_flight_unref(&making->landing);
}

/* ---- TextRoom: a text that comes in pieces and whose size is known --------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *str; /* nobody else knows it; NULL: there is no room, or no more */
    uint8_t *letters;
    size_t room, size;
} room_object;

static PyObject *room_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "n:TextRoom", &size) || (kwargs && PyDict_Size(kwargs))) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "TextRoom() takes one argument");
        }
        return NULL;
    }
    if (size < 0) {
        PyErr_SetString(PyExc_ValueError, "the size of a text is not negative");
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    room_object *self = (room_object *)allocate(type, 0);
    if (self && can_fill()) {
        self->str = new_ascii((size_t)size, &self->letters);
        self->room = self->str ? (size_t)size : 0;
    }
    return (PyObject *)self;
}

static void room_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    Py_XDECREF(((room_object *)object)->str);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static PyObject *room_feed(PyObject *object, PyObject *data)
{
    room_object *self = (room_object *)object;
    Py_buffer view;
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    size_t size = (size_t)view.len;
    bool fits = self->str && size <= self->room - self->size && is_ascii(view.buf, size);
    if (fits && size) {
        memcpy(self->letters + self->size, view.buf, size);
        self->size += size;
    }
    PyBuffer_Release(&view);
    return PyBool_FromLong(fits);
}

static PyObject *room_finish(PyObject *object, PyObject *unused)
{
    (void)unused;
    room_object *self = (room_object *)object;
    PyObject *str = self->str, *text = NULL;
    size_t size = self->size;
    self->str = NULL;
    self->room = self->size = 0;
    if (!size) {
        text = PyUnicode_FromStringAndSize("", 0);
    } else if (PyUnicode_Resize(&str, (Py_ssize_t)size) == 0) {
        text = Py_NewRef(str);
    }
    Py_XDECREF(str);
    return text;
}

static PyMethodDef room_methods[] = {
    { "feed", room_feed, METH_O,
      "feed($self, data, /)\n--\n\nTakes the next piece (bytes-like).  False: it is not in ASCII, or there is no room, and it was not taken." },
    { "finish", room_finish, METH_NOARGS, "finish($self, /)\n--\n\nThe text that was taken; after that there is no room any more." },
    { NULL, NULL, 0, NULL },
};

static PyType_Slot room_slots[] = {
    { Py_tp_doc, "TextRoom(size, /)\n--\n\nRoom for a text in ASCII of at most `size` letters that comes in pieces: none of them is copied "
                 "twice." },
    { Py_tp_new, room_new },
    { Py_tp_dealloc, room_dealloc },
    { Py_tp_methods, room_methods },
    { 0, NULL },
};

static PyType_Spec room_spec = {
    .name = "swerex_c._core.TextRoom",
    .basicsize = sizeof(room_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = room_slots,
};

int swx_py_text_init(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &room_spec, NULL);
    int failed = type ? PyModule_AddType(module, (PyTypeObject *)type) : -1;
    Py_XDECREF(type);
    return failed;
}
