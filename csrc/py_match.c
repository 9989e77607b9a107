/* Matcher: patterns in a stream. */
#include "py_core.h"

#include <stdatomic.h>

enum { LONG_FEED = 64 * 1024 }; /* bytes from which on letting other threads run is worth its cost */

typedef struct {
    PyObject_HEAD
    swx_match *match;
    atomic_bool busy; /* someone reads or changes the matcher, perhaps without the GIL */
} Matcher;

static PyObject *matcher_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = { "program", NULL };
    const char *program;
    Py_ssize_t size;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y#:Matcher", names, &program, &size)) {
        return NULL;
    }
    Matcher *self = (Matcher *)PyType_GenericAlloc(type, 0);
    /* a bytes object's contents are aligned for this */
    const uint32_t *words = (const uint32_t *)(const void *)program;
    swx_status status = self ? swx_match_new(&self->match, words, (size_t)size / sizeof(*words)) : SWX_OK;
    if (status != SWX_OK) {
        swx_py_raise(&(swx_error){ .status = status, .text = "this is no program of a matcher" });
        Py_CLEAR(self);
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
    swx_hit hit = { 0 };
    size_t consumed;
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    if (lock(self) < 0) {
        PyBuffer_Release(&view);
        return NULL;
    }
    const uint8_t *bytes = view.len ? view.buf : (const uint8_t *)"";
    PyThreadState *thread = view.len < LONG_FEED ? NULL : PyEval_SaveThread();
    swx_status status = swx_match_feed(self->match, bytes, (size_t)view.len, &consumed, &hit);
    if (thread) {
        PyEval_RestoreThread(thread);
    }
    atomic_store(&self->busy, false);
    PyBuffer_Release(&view);
    if (status == SWX_MORE) {
        Py_RETURN_NONE;
    }
    if (status == SWX_ELIMIT) {
        return PyErr_Format(PyExc_RuntimeError, "the patterns take too long on this text");
    }
    if (status != SWX_OK) {
        return PyErr_NoMemory();
    }
    return Py_BuildValue("nKK", (Py_ssize_t)hit.index, (unsigned long long)hit.start, (unsigned long long)hit.end);
}

static PyObject *matcher_reset(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    Matcher *self = (Matcher *)object;
    if (lock(self) < 0) {
        return NULL;
    }
    swx_match_reset(self->match);
    atomic_store(&self->busy, false);
    Py_RETURN_NONE;
}

static PyMethodDef METHODS[] = {
    { "feed", matcher_feed, METH_O, "feed($self, data, /)\n--\n\n" },
    { "reset", matcher_reset, METH_NOARGS, "reset($self, /)\n--\n\n" },
    { NULL, NULL, 0, NULL },
};

PyType_Spec swx_py_matcher_spec =
    SWX_PY_SPEC("Matcher", Matcher, 0, { Py_tp_doc, "Matcher(program)\n--\n\n" }, { Py_tp_new, matcher_new },
                { Py_tp_dealloc, matcher_dealloc }, { Py_tp_methods, METHODS });

swx_match *swx_py_match_take(const swx_py_state *state, PyObject *object)
{
    if (!Py_IS_TYPE(object, state->types[SWX_PY_MATCHER])) {
        PyErr_SetString(PyExc_TypeError, "a Matcher is needed");
        return NULL;
    }
    Matcher *self = (Matcher *)object;
    return lock(self) < 0 ? NULL : self->match;
}

void swx_py_match_give_back(PyObject *object) { atomic_store(&((Matcher *)object)->busy, false); }
