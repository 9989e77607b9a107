/* Operation: a request, for Python. */
#include "py_session.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "py_object.h"
#include "swx_alloc.h"
#include "swx_command.h"

static const char *const end_names[] = { "none", "done",   "matched",   "timeout", "quiet",  "died",
                                         "lost", "closed", "cancelled", "memory",  "costly", "system" };

/* False: it has not ended, and never will. */
static bool operation_cancel_now(operation_object *self)
{
    request *f = self->request;
    bool ended = atomic_load(&f->base.done);
    if (!ended) {
        Py_BEGIN_ALLOW_THREADS
        ended = swx_py_place_lock(f->at);
        if (ended) {
            swx_session_cancel(f->at->session, &f->op);
            swx_py_place_unlock(f->at);
        }
        Py_END_ALLOW_THREADS
    }
    return ended;
}

static int operation_traverse(PyObject *object, visitproc visit, void *arg)
{
    operation_object *self = (operation_object *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->future);
    Py_VISIT(self->news);
    Py_VISIT(self->matcher);
    Py_VISIT(self->command);
    return 0;
}

/* The futures are what can be part of a cycle.  The request's borrowed pointers go first. */
static int operation_clear(PyObject *object)
{
    operation_object *self = (operation_object *)object;
    if (self->request) {
        self->request->base.future = NULL;
        self->request->news.future = NULL;
    }
    Py_CLEAR(self->future);
    Py_CLEAR(self->news);
    Py_CLEAR(self->command);
    return 0;
}

static void operation_dealloc(PyObject *object)
{
    operation_object *self = (operation_object *)object;
    PyObject_GC_UnTrack(object);
    operation_clear(object);
    if (self->request) {
        bool ended = operation_cancel_now(self), dies = atomic_load(&self->request->at->home->ended);
        if (self->matcher && (ended || !dies)) { /* else the reactor may still use it */
            if (self->request->op.match) {
                swx_py_match_give_back(self->matcher);
            }
            Py_DECREF(self->matcher);
        }
        swx_request_unref(&self->request->base);
    }
    swx_py_deallocate(object);
}

static PyObject *operation_wait(PyObject *object, PyObject *seconds)
{
    operation_object *self = (operation_object *)object;
    int64_t deadline;
    if (swx_py_deadline(seconds, swx_now(), &deadline) < 0) {
        return NULL;
    }
    if (swx_py_place_is_gone(self->request->at)) {
        return swx_py_place_raise_gone(self->request->at);
    }
    int done = swx_request_wait(&self->request->base, deadline);
    return done < 0 ? NULL : PyBool_FromLong(done);
}

static PyObject *operation_cancel(PyObject *object, PyObject *unused)
{
    (void)unused;
    operation_cancel_now((operation_object *)object);
    Py_RETURN_NONE;
}

static PyObject *operation_take(PyObject *object, PyObject *unused)
{
    (void)unused;
    request *f = ((operation_object *)object)->request;
    static const size_t room = 256 << 10; /* what a loop may take at a time without being held up */
    uint8_t *bytes = swx_malloc(room);
    if (!bytes) {
        return PyErr_NoMemory();
    }
    size_t size = 0;
    bool locked;
    Py_BEGIN_ALLOW_THREADS
    locked = swx_py_place_lock(f->at);
    if (locked) {
        size = swx_session_take(f->at->session, &f->op, bytes, room, swx_now());
        swx_py_place_unlock(f->at);
    }
    Py_END_ALLOW_THREADS
    PyObject *taken =
        locked ? PyBytes_FromStringAndSize((const char *)bytes, (Py_ssize_t)size) : swx_py_place_raise_gone(f->at);
    swx_free(bytes);
    return taken;
}

static PyObject *operation_unsearched(PyObject *object, PyObject *unused)
{
    (void)unused;
    request *f = ((operation_object *)object)->request;
    swx_buf bytes = { 0 };
    uint64_t at = 0;
    bool locked;
    Py_BEGIN_ALLOW_THREADS
    locked = swx_py_place_lock(f->at);
    if (locked) {
        swx_session_take_unsearched(f->at->session, &f->op, &bytes, &at, swx_now());
        swx_py_place_unlock(f->at);
    }
    Py_END_ALLOW_THREADS
    PyObject *taken = locked ? Py_BuildValue("(Ky#)", (unsigned long long)at, bytes.size ? (char *)bytes.data : "",
                                             (Py_ssize_t)bytes.size)
                             : swx_py_place_raise_gone(f->at);
    swx_buf_free(&bytes);
    return taken;
}

static PyObject *operation_found(PyObject *object, PyObject *found)
{
    request *f = ((operation_object *)object)->request;
    Py_ssize_t index = 0;
    unsigned long long start = 0, end = 0;
    if (found != Py_None && !PyArg_ParseTuple(found, "nKK:found", &index, &start, &end)) {
        return NULL;
    }
    swx_hit hit = { .index = (size_t)index, .start = start, .end = end };
    bool locked;
    Py_BEGIN_ALLOW_THREADS
    locked = swx_py_place_lock(f->at);
    if (locked) {
        swx_session_found(f->at->session, &f->op, found == Py_None ? NULL : &hit, swx_now());
        swx_py_place_unlock(f->at);
    }
    Py_END_ALLOW_THREADS
    return locked ? Py_NewRef(Py_None) : swx_py_place_raise_gone(f->at);
}

static request *finished(PyObject *object)
{
    request *f = ((operation_object *)object)->request;
    if (!atomic_load(&f->base.done)) {
        PyErr_SetString(PyExc_RuntimeError, "the operation has not ended yet");
        return NULL;
    }
    return f;
}

static PyObject *operation_done(PyObject *object, void *unused)
{
    (void)unused;
    return PyBool_FromLong(atomic_load(&((operation_object *)object)->request->base.done));
}

static PyObject *operation_end(PyObject *object, void *unused)
{
    (void)unused;
    const request *f = finished(object);
    return f ? PyUnicode_FromString(end_names[f->op.end]) : NULL;
}

static PyObject *operation_code(PyObject *object, void *unused)
{
    (void)unused;
    const request *f = finished(object);
    return f ? PyLong_FromLong(f->empty && f->op.end == SWX_END_DONE ? 0 : f->op.code) : NULL;
}

static PyObject *operation_signal(PyObject *object, void *unused)
{
    (void)unused;
    const request *f = finished(object);
    return f ? PyLong_FromLong(f->op.signal) : NULL;
}

static PyObject *operation_output(PyObject *object, void *unused)
{
    (void)unused;
    const request *f = finished(object);
    if (!f || f->op.output.size <= f->op.limit) {
        return f ? swx_py_text(&f->op.output, f->op.processed) : NULL;
    }
    swx_buf answer;
    if (swx_buf_narrow(&answer, &f->op.output, f->op.limit) != SWX_OK) {
        return PyErr_NoMemory();
    }
    PyObject *text = swx_py_text(&answer, f->op.processed);
    swx_buf_free(&answer);
    return text;
}

static PyObject *operation_dropped(PyObject *object, void *unused)
{
    (void)unused;
    const request *f = finished(object);
    if (!f) {
        return NULL;
    }
    size_t more = f->op.output.size > f->op.limit ? f->op.output.size - f->op.limit : 0;
    return PyLong_FromUnsignedLongLong(swx_buf_dropped(&f->op.output) + more);
}

static PyObject *operation_hit(PyObject *object, void *unused)
{
    (void)unused;
    const request *f = finished(object);
    return f ? PyLong_FromSize_t(f->op.hit.index) : NULL;
}

static PyObject *operation_ended(PyObject *object, void *unused)
{
    (void)unused;
    const request *f = finished(object);
    return f ? PyBool_FromLong(f->op.ended) : NULL;
}

static PyObject *operation_typed(PyObject *object, void *unused)
{
    (void)unused;
    const request *f = finished(object);
    return f ? PyBool_FromLong(f->op.typed_out) : NULL;
}

static PyObject *operation_begun(PyObject *object, void *unused)
{
    (void)unused;
    const request *f = finished(object);
    return f ? PyBool_FromLong(f->op.begun) : NULL;
}

static PyObject *operation_error(PyObject *object, void *unused)
{
    (void)unused;
    const request *f = finished(object);
    if (f && f->op.error.status == SWX_ESYS) {
        return PyUnicode_FromFormat("%s: %s", f->op.error.call, strerror(f->op.error.sys_errno));
    }
    return f ? PyUnicode_FromString(f->op.error.text ? f->op.error.text : "") : NULL;
}

static PyObject *operation_errno(PyObject *object, void *unused)
{
    (void)unused;
    const request *f = finished(object);
    return f ? PyLong_FromLong(f->op.error.sys_errno) : NULL;
}

static PyObject *operation_release(PyObject *object, PyObject *checked_arg)
{
    operation_object *self = (operation_object *)object;
    request *f = self->request;
    PyObject *keep;
    Py_ssize_t size;
    long checked = PyLong_AsLong(checked_arg);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (!self->command) {
        PyErr_SetString(PyExc_RuntimeError, "the operation is not held");
        return NULL;
    }
    const char *text = swx_py_command_bytes(self->command, &size, &keep);
    swx_op wanted = { .kind = SWX_OP_RUN };
    int delivered =
        text ? swx_py_request_encode(&f->typed, &wanted, &f->empty, text, (size_t)size, checked > 0, f->at) : -1;
    Py_XDECREF(keep);
    if (delivered < 0) {
        return NULL;
    }
    Py_CLEAR(self->command);
    bool locked;
    Py_BEGIN_ALLOW_THREADS
    locked = swx_py_place_lock(f->at);
    if (locked) {
        f->op.typed = f->typed.data;
        f->op.typed_size = f->typed.size;
        f->op.raw = wanted.raw;
        f->op.runs = wanted.runs;
        f->op.hints = wanted.hints;
        swx_session_release(f->at->session, &f->op, swx_now());
        swx_py_place_unlock(f->at);
    }
    Py_END_ALLOW_THREADS
    return locked ? Py_NewRef(Py_None) : swx_py_place_raise_gone(f->at);
}

static PyObject *operation_held(PyObject *object, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((operation_object *)object)->command != NULL);
}

static PyObject *operation_future(PyObject *object, void *unused)
{
    (void)unused;
    PyObject *future = ((operation_object *)object)->future;
    return Py_NewRef(future ? future : Py_None);
}

/* The request's pointer is borrowed from us, and the queue reads it with the GIL held. */
static int operation_set_future(PyObject *object, PyObject *future, void *unused)
{
    (void)unused;
    operation_object *self = (operation_object *)object;
    PyObject *before = self->future;
    if (!future) {
        PyErr_SetString(PyExc_AttributeError, "the future of an operation cannot be deleted");
        return -1;
    }
    self->future = Py_NewRef(future);
    self->request->base.future = future == Py_None ? NULL : future;
    Py_XDECREF(before);
    return 0;
}

static PyMethodDef operation_methods[] = {
    { "release", operation_release, METH_O,
      "release($self, checked, /)\n--\n\nLets a held command begin.  checked: 1, `bash -n` accepts it without a "
      "warning; 0, with one." },
    { "wait", operation_wait, METH_O,
      "wait($self, seconds, /)\n--\n\nBlocks until it ended (True) or the time is over (False).  None: no limit.  For "
      "callers without "
      "an event loop." },
    { "cancel", operation_cancel, METH_NOARGS,
      "cancel($self, /)\n--\n\nEnds it as `cancelled`.  A command that it started goes on.  No effect when it ended "
      "before." },
    { "take", operation_take, METH_NOARGS,
      "take($self, /)\n--\n\nRaw output that was not taken yet, at most 256 KiB at a time; b\"\" when there is none "
      "now." },
    { "unsearched", operation_unsearched, METH_NOARGS,
      "unsearched($self, /)\n--\n\nOutput that the caller has to search and has not taken yet, behind its offset in "
      "all "
      "of that; 0 again when the search begins anew." },
    { "found", operation_found, METH_O,
      "found($self, hit, /)\n--\n\nEnds it as `matched`: (index of the pattern, start, end), offsets in what was taken "
      "by unsearched(). None: as `costly`." },
    { NULL, NULL, 0, NULL },
};

static PyGetSetDef operation_attributes[] = {
    { "future", operation_future, operation_set_future,
      "What Completions.take returns when it has ended, or None.  May be set until then, by the thread that takes.",
      NULL },
    { "done", operation_done, NULL, "Whether it has ended.", NULL },
    { "held", operation_held, NULL,
      "Whether it keeps its place in the queue until release(), because bash has to be asked about the command.",
      NULL },
    { "end", operation_end, NULL,
      "How it ended: done, matched, timeout, quiet, died, lost, closed, cancelled, memory or system.", NULL },
    { "code", operation_code, NULL, "The exit code, when end is done or died; -1: the shell's was lost.", NULL },
    { "signal", operation_signal, NULL, "The signal that ended the shell, when end is died; 0: it exited by itself.",
      NULL },
    { "output", operation_output, NULL, "The output as text.  Made anew at each access, unless make() has.", NULL },
    { "dropped", operation_dropped, NULL, "Bytes missing in the middle of output because of the limit.", NULL },
    { "hit", operation_hit, NULL, "Index of the pattern, when end is matched.", NULL },
    { "typed", operation_typed, NULL, "Whether the command was given to the shell at all.", NULL },
    { "begun", operation_begun, NULL, "Whether the shell has begun to run the command, or the script of a start.",
      NULL },
    { "ended", operation_ended, NULL, "After a match: whether the command has ended, so that it has a code.", NULL },
    { "error", operation_error, NULL, "What was wrong, when end is system.", NULL },
    { "errno", operation_errno, NULL, "The number of the system call's error, when end is system; 0: it was none.",
      NULL },
    { NULL, NULL, NULL, NULL, NULL },
};

static PyType_Slot operation_slots[] = {
    { Py_tp_doc,
      "One thing a session was asked to do.  Made by the methods of Session.\n\nThrowing it away before it ended "
      "cancels it." },
    { Py_tp_dealloc, operation_dealloc },
    { Py_tp_traverse, operation_traverse },
    { Py_tp_clear, operation_clear },
    { Py_tp_methods, operation_methods },
    { Py_tp_getset, operation_attributes },
    { 0, NULL },
};

PyType_Spec swx_py_operation_spec = {
    .name = "swerex_c._core.Operation",
    .basicsize = sizeof(operation_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = operation_slots,
};
