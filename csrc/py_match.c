#include "py_match.h"

#include <stdatomic.h>
#include <string.h>

#include "py_object.h"
#include "swx_alloc.h"

enum { LONG_FEED = 64 * 1024 }; /* bytes from which on letting other threads run is worth its cost */

typedef struct {
    PyObject_HEAD
    swx_match *match;
    size_t consumed;
    atomic_bool busy; /* someone reads or changes the matcher, perhaps without the GIL */
} Matcher;

static swx_match *new_match(PyObject *program)
{
    swx_match *match = NULL;
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(program, &bytes, &size) < 0) {
        return NULL;
    }
    /* a bytes object's contents are aligned for this */
    swx_status status = swx_match_new(&match, (const uint32_t *)(const void *)bytes, (size_t)size / sizeof(uint32_t));
    if (status == SWX_ENOMEM) {
        PyErr_NoMemory();
    } else if (status != SWX_OK) {
        PyErr_SetString(PyExc_ValueError, "this is no program of a matcher");
    }
    return match;
}

static PyObject *matcher_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = { "program", NULL };
    PyObject *program;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Matcher", names, &program)) {
        return NULL;
    }
    swx_match *match = new_match(program);
    if (!match) {
        return NULL;
    }
    Matcher *self = (Matcher *)swx_py_allocate(type);
    if (self) {
        self->match = match;
        atomic_init(&self->busy, false);
    } else {
        swx_match_free(match);
    }
    return (PyObject *)self;
}

static void matcher_dealloc(PyObject *object)
{
    swx_match_free(((Matcher *)object)->match);
    swx_py_deallocate(object);
}

/* ---- use ---- */

static int lock(Matcher *self)
{
    if (atomic_exchange(&self->busy, true)) {
        PyErr_SetString(PyExc_RuntimeError, "the matcher is in use");
        return -1;
    }
    return 0;
}

static PyObject *matcher_feed(PyObject *object, PyObject *data)
{
    Matcher *self = (Matcher *)object;
    Py_buffer view;
    swx_status status;
    swx_hit hit = { 0 };
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    if (lock(self) < 0) {
        PyBuffer_Release(&view);
        return NULL;
    }
    const uint8_t *bytes = view.len ? view.buf : (const uint8_t *)"";
    if (view.len < LONG_FEED) {
        status = swx_match_feed(self->match, bytes, (size_t)view.len, &self->consumed, &hit);
    } else {
        Py_BEGIN_ALLOW_THREADS
        status = swx_match_feed(self->match, bytes, (size_t)view.len, &self->consumed, &hit);
        Py_END_ALLOW_THREADS
    }
    atomic_store(&self->busy, false);
    PyBuffer_Release(&view);
    if (status == SWX_ENOMEM) {
        return PyErr_NoMemory();
    }
    if (status == SWX_ELIMIT) {
        PyErr_SetString(PyExc_RuntimeError, "the patterns take too long on this text");
        return NULL;
    }
    if (status == SWX_MORE) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("nKK", (Py_ssize_t)hit.index, (unsigned long long)hit.start, (unsigned long long)hit.end);
}

static PyObject *matcher_reset(PyObject *object, PyObject *ignored)
{
    Matcher *self = (Matcher *)object;
    (void)ignored;
    if (lock(self) < 0) {
        return NULL;
    }
    swx_match_reset(self->match);
    atomic_store(&self->busy, false);
    Py_RETURN_NONE;
}

static PyObject *matcher_consumed(PyObject *object, void *closure)
{
    (void)closure;
    return PyLong_FromSize_t(((Matcher *)object)->consumed);
}

static PyMethodDef METHODS[] = {
    { "feed", matcher_feed, METH_O, "feed($self, data, /)\n--\n\n" },
    { "reset", matcher_reset, METH_NOARGS, "reset($self, /)\n--\n\n" },
    { NULL, NULL, 0, NULL },
};

static PyGetSetDef PROPERTIES[] = {
    { "consumed", matcher_consumed, NULL, "How many bytes of the last data were read.", NULL },
    { NULL, NULL, NULL, NULL, NULL },
};

static PyType_Slot SLOTS[] = {
    { Py_tp_doc, "Matcher(program)\n--\n\n" },
    { Py_tp_new, (void *)matcher_new },
    { Py_tp_dealloc, (void *)matcher_dealloc },
    { Py_tp_methods, METHODS },
    { Py_tp_getset, PROPERTIES },
    { 0, NULL },
};

static PyType_Spec SPEC = {
    .name = "swerex_c._core.Matcher",
    .basicsize = sizeof(Matcher),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = SLOTS,
};

int swx_py_match_init(PyObject *module)
{
    PyTypeObject *type = swx_py_add_type(module, &SPEC);
    Py_XDECREF((PyObject *)type);
    return type ? 0 : -1;
}

/* The type is known by its destructor, not by its name in the module, which anyone may bind to something else. */
swx_match *swx_py_match_take(PyObject *object)
{
    if (PyType_GetSlot(Py_TYPE(object), Py_tp_dealloc) != (void *)matcher_dealloc) {
        PyErr_SetString(PyExc_TypeError, "a Matcher is needed");
        return NULL;
    }
    Matcher *self = (Matcher *)object;
    return lock(self) < 0 ? NULL : self->match;
}

void swx_py_match_give_back(PyObject *object) { atomic_store(&((Matcher *)object)->busy, false); }
