/* Operation: a request, for Python. */
#include "py_session.h"

#include <string.h>

static const char *const end_names[] = { "none", "done",   "matched",   "timeout", "quiet",  "died",
                                         "lost", "closed", "cancelled", "memory",  "costly", "system" };

/* False: it has not ended, and never will. */
static bool operation_cancel_now(operation_object *self)
{
    request *req = self->request;
    if (atomic_load(&req->base.done)) {
        return true;
    }
    PyThreadState *thread = swx_py_lock(req->handle->engine, req->handle->node);
    if (thread) {
        swx_session_cancel(req->handle->session, &req->op);
        swx_py_unlock(req->handle->engine, req->handle->node, thread);
    }
    return thread;
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
        bool ended = operation_cancel_now(self), dies = atomic_load(&self->request->handle->engine->ended);
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

static PyObject *operation_cancel(PyObject *object, PyObject *Py_UNUSED(unused))
{
    operation_cancel_now((operation_object *)object);
    Py_RETURN_NONE;
}

static PyObject *operation_take(PyObject *object, PyObject *Py_UNUSED(unused))
{
    request *req = ((operation_object *)object)->request;
    static const size_t room = 256 << 10; /* what a loop may take at a time without being held up */
    uint8_t *bytes = malloc(room);
    if (!bytes) {
        return PyErr_NoMemory();
    }
    PyThreadState *thread = swx_py_session_enter(req->handle);
    if (!thread) {
        free(bytes);
        return NULL;
    }
    size_t size = swx_session_take(req->handle->session, &req->op, bytes, room, swx_now());
    swx_py_session_leave(req->handle, thread);
    PyObject *taken = PyBytes_FromStringAndSize((const char *)bytes, (Py_ssize_t)size);
    free(bytes);
    return taken;
}

static PyObject *operation_unsearched(PyObject *object, PyObject *Py_UNUSED(unused))
{
    request *req = ((operation_object *)object)->request;
    swx_buf bytes;
    uint64_t at;
    PyThreadState *thread = swx_py_session_enter(req->handle);
    if (!thread) {
        return NULL;
    }
    swx_session_take_unsearched(req->handle->session, &req->op, &bytes, &at, swx_now());
    swx_py_session_leave(req->handle, thread);
    PyObject *taken =
        Py_BuildValue("(Ky#)", (unsigned long long)at, bytes.size ? (char *)bytes.data : "", (Py_ssize_t)bytes.size);
    swx_buf_free(&bytes);
    return taken;
}

static PyObject *operation_found(PyObject *object, PyObject *found)
{
    request *req = ((operation_object *)object)->request;
    Py_ssize_t index = 0;
    unsigned long long start = 0, end = 0;
    if (found != Py_None && !PyArg_ParseTuple(found, "nKK:found", &index, &start, &end)) {
        return NULL;
    }
    swx_hit hit = { .index = (size_t)index, .start = start, .end = end };
    PyThreadState *thread = swx_py_session_enter(req->handle);
    if (!thread) {
        return NULL;
    }
    swx_session_found(req->handle->session, &req->op, found == Py_None ? NULL : &hit, swx_now());
    swx_py_session_leave(req->handle, thread);
    Py_RETURN_NONE;
}

/* ---- attributes ---- */

static PyObject *output_of(const swx_op *op)
{
    if (op->output.size <= op->limit) {
        return swx_py_text(&op->output, op->processed);
    }
    swx_buf answer;
    if (swx_buf_narrow(&answer, &op->output, op->limit) != SWX_OK) {
        return PyErr_NoMemory();
    }
    PyObject *text = swx_py_text(&answer, op->processed);
    swx_buf_free(&answer);
    return text;
}

static PyObject *error_of(const swx_error *error)
{
    if (error->status == SWX_ESYS) {
        return PyUnicode_FromFormat("%s: %s", error->call, strerror(error->sys_errno));
    }
    return PyUnicode_FromString(error->text ? error->text : "");
}

/* The attributes: the first two can be read at all times, the others once it has ended. */
typedef enum { DONE, HELD, END, CODE, SIGNAL, OUTPUT, DROPPED, HIT, ENDED, TYPED, BEGUN, ERROR, ERRNO } fact;

static PyObject *operation_fact(PyObject *object, void *which)
{
    const operation_object *self = (const operation_object *)object;
    const request *req = self->request;
    const swx_op *op = &req->op;
    const fact wanted = (fact)(intptr_t)which;
    bool done = atomic_load(&req->base.done);
    if (!done && wanted > HELD) {
        return PyErr_Format(PyExc_RuntimeError, "the operation has not ended yet");
    }
    switch (wanted) {
    case DONE: return PyBool_FromLong(done);
    case HELD: return PyBool_FromLong(self->command != NULL);
    case END: return PyUnicode_FromString(end_names[op->end]);
    case CODE: return PyLong_FromLong(req->empty && op->end == SWX_END_DONE ? 0 : op->code);
    case SIGNAL: return PyLong_FromLong(op->signal);
    case OUTPUT: return output_of(op);
    case DROPPED: {
        size_t more = op->output.size > op->limit ? op->output.size - op->limit : 0;
        return PyLong_FromUnsignedLongLong(swx_buf_dropped(&op->output) + more);
    }
    case HIT: return PyLong_FromSize_t(op->hit.index);
    case ENDED: return PyBool_FromLong(op->ended);
    case TYPED: return PyBool_FromLong(op->typed_out);
    case BEGUN: return PyBool_FromLong(op->begun);
    case ERROR: return error_of(&op->error);
    case ERRNO: return PyLong_FromLong(op->error.sys_errno);
    }
    Py_UNREACHABLE();
}

static PyObject *operation_release(PyObject *object, PyObject *checked_arg)
{
    operation_object *self = (operation_object *)object;
    request *req = self->request;
    long checked = PyLong_AsLong(checked_arg);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (!self->command) {
        return PyErr_Format(PyExc_RuntimeError, "the operation is not held");
    }
    if (swx_py_request_encode(req, self->command, checked > 0) < 0) { /* the core reads none of that while it is held */
        return NULL;
    }
    Py_CLEAR(self->command);
    PyThreadState *thread = swx_py_session_enter(req->handle);
    if (!thread) {
        return NULL;
    }
    req->op.typed = req->typed.data;
    req->op.typed_size = req->typed.size;
    swx_session_release(req->handle->session, &req->op, swx_now());
    swx_py_session_leave(req->handle, thread);
    Py_RETURN_NONE;
}

/* The request's pointer is borrowed from us, and the queue reads it with the GIL held. */
static PyObject *operation_set_future(PyObject *object, PyObject *future)
{
    operation_object *self = (operation_object *)object;
    PyObject *before = self->future;
    self->future = Py_NewRef(future);
    self->request->base.future = future == Py_None ? NULL : future;
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

static PyMethodDef operation_methods[] = {
    { "release", operation_release, METH_O, "release($self, checked, /)\n--\n\n" },
    { "set_future", operation_set_future, METH_O, "set_future($self, future, /)\n--\n\n" },
    { "cancel", operation_cancel, METH_NOARGS, "cancel($self, /)\n--\n\n" },
    { "take", operation_take, METH_NOARGS, "take($self, /)\n--\n\n" },
    { "unsearched", operation_unsearched, METH_NOARGS, "unsearched($self, /)\n--\n\n" },
    { "found", operation_found, METH_O, "found($self, hit, /)\n--\n\n" },
    { NULL, NULL, 0, NULL },
};

static PyGetSetDef operation_attributes[] = {
    SWX_PY_FACT("done", operation_fact, DONE),       SWX_PY_FACT("held", operation_fact, HELD),
    SWX_PY_FACT("end", operation_fact, END),         SWX_PY_FACT("code", operation_fact, CODE),
    SWX_PY_FACT("signal", operation_fact, SIGNAL),   SWX_PY_FACT("output", operation_fact, OUTPUT),
    SWX_PY_FACT("dropped", operation_fact, DROPPED), SWX_PY_FACT("hit", operation_fact, HIT),
    SWX_PY_FACT("ended", operation_fact, ENDED),     SWX_PY_FACT("typed", operation_fact, TYPED),
    SWX_PY_FACT("begun", operation_fact, BEGUN),     SWX_PY_FACT("error", operation_fact, ERROR),
    SWX_PY_FACT("errno", operation_fact, ERRNO),     { NULL, NULL, NULL, NULL, NULL },
};

PyType_Spec swx_py_operation_spec = SWX_PY_SPEC(
    "Operation", operation_object, Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    { Py_tp_dealloc, operation_dealloc }, { Py_tp_traverse, operation_traverse }, { Py_tp_clear, operation_clear },
    { Py_tp_methods, operation_methods }, { Py_tp_getset, operation_attributes });
