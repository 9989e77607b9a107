/* Completions: what an event loop watches to learn of ended operations. */
#include "py_core.h"

typedef struct {
    PyObject_HEAD
    swx_queue *queue;
} queue_object;

static PyObject *queue_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = { NULL };
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":Completions", names)) {
        return NULL;
    }
    queue_object *self = (queue_object *)PyType_GenericAlloc(type, 0);
    swx_error err;
    if (self && swx_queue_new(&self->queue, &err) != SWX_OK) {
        swx_py_raise(&err);
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

/* Lets go of the items; first their futures are appended to the list, if there is one.  NULL: out of memory. */
static PyObject *hand_over(swx_queue_link *item, PyObject *list)
{
    while (item) {
        swx_request *request = (swx_request *)item;
        item = item->next;
        if (list && request->future && PyList_Append(list, request->future) < 0) {
            Py_CLEAR(list);
        }
        swx_request_unref(request);
    }
    return list;
}

static void queue_dealloc(PyObject *object)
{
    queue_object *self = (queue_object *)object;
    if (self->queue) {
        hand_over(swx_queue_close(self->queue), NULL);
        swx_queue_unref(self->queue);
    }
    swx_py_deallocate(object);
}

static PyObject *queue_fileno(queue_object *self, PyObject *Py_UNUSED(unused))
{
    return PyLong_FromLong(swx_queue_fd(self->queue));
}

static PyObject *queue_take(queue_object *self, PyObject *Py_UNUSED(unused))
{
    PyObject *list = PyList_New(0);
    return list ? hand_over(swx_queue_take(self->queue), list) : NULL;
}

static PyMethodDef queue_methods[] = {
    { "fileno", (PyCFunction)(void (*)(void))queue_fileno, METH_NOARGS, "fileno($self, /)\n--\n\n" },
    { "take", (PyCFunction)(void (*)(void))queue_take, METH_NOARGS, "take($self, /)\n--\n\n" },
    { NULL, NULL, 0, NULL },
};

PyType_Spec swx_py_completions_spec =
    SWX_PY_SPEC("Completions", queue_object, 0, { Py_tp_doc, "Completions()\n--\n\n" }, { Py_tp_new, queue_new },
                { Py_tp_dealloc, queue_dealloc }, { Py_tp_methods, queue_methods });

swx_queue *swx_py_queue_get(swx_py_state *state, PyObject *object)
{
    if (object == Py_None) {
        return NULL;
    }
    if (!Py_IS_TYPE(object, state->types[SWX_PY_COMPLETIONS])) {
        PyErr_SetString(PyExc_TypeError, "queue must be a Completions or None");
        return NULL;
    }
    return ((queue_object *)object)->queue;
}
