/* Waker: what an event loop watches to learn of ended operations. */
#include "py_core.h"

typedef struct {
    PyObject_HEAD
    swx_waker *waker;
} waker_object;

static PyObject *waker_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    if (!PyArg_ParseTuple(args, ":Waker") || (kwargs && PyDict_Size(kwargs))) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "Waker() takes no arguments");
        }
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    waker_object *self = (waker_object *)allocate(type, 0);
    swx_error err;
    if (self && swx_waker_new(&self->waker, &err) != SWX_OK) {
        swx_py_raise(&err);
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void drop_all(swx_wake *item)
{
    while (item) {
        swx_wake *next = item->next;
        swx_flight_unref((swx_flight *)item);
        item = next;
    }
}

static void waker_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    waker_object *self = (waker_object *)object;
    if (self->waker) {
        drop_all(swx_waker_close(self->waker));
        swx_waker_unref(self->waker);
    }
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyObject *waker_fileno(waker_object *self, PyObject *unused)
{
    (void)unused;
    return PyLong_FromLong(swx_waker_fd(self->waker));
}

static PyObject *waker_take(waker_object *self, PyObject *unused)
{
    (void)unused;
    PyObject *list = PyList_New(0);
    swx_wake *item = list ? swx_waker_take(self->waker) : NULL;
    while (item) {
        swx_flight *flight = (swx_flight *)item;
        item = item->next;
        if (list && flight->future && PyList_Append(list, flight->future) < 0) {
            Py_CLEAR(list);
        }
        swx_flight_unref(flight);
    }
    return list;
}

static PyMethodDef waker_methods[] = {
    { "fileno", (PyCFunction)(void (*)(void))waker_fileno, METH_NOARGS,
      "fileno($self, /)\n--\n\nA descriptor that is readable while something waits to be taken.  Valid as long as the object." },
    { "take", (PyCFunction)(void (*)(void))waker_take, METH_NOARGS,
      "take($self, /)\n--\n\nThe `future` objects of all operations that ended, or have news, since the last call, oldest first." },
    { NULL, NULL, 0, NULL },
};

static PyType_Slot waker_slots[] = {
    { Py_tp_doc, "Waker()\n--\n\nCollects ended operations for one event loop.\n\nAny thread may end operations; one loop "
                 "watches fileno() and calls take()." },
    { Py_tp_new, waker_new },
    { Py_tp_dealloc, waker_dealloc },
    { Py_tp_methods, waker_methods },
    { 0, NULL },
};

static PyType_Spec waker_spec = {
    .name = "swerex_c._core.Waker",
    .basicsize = sizeof(waker_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = waker_slots,
};

int swx_py_waker_init(PyObject *module, swx_py_state *state)
{
    state->waker_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &waker_spec, NULL);
    return state->waker_type ? PyModule_AddType(module, state->waker_type) : -1;
}

swx_waker *swx_py_waker_get(swx_py_state *state, PyObject *object)
{
    if (object == Py_None) {
        return NULL;
    }
    if (!Py_IS_TYPE(object, state->waker_type)) {
        PyErr_SetString(PyExc_TypeError, "waker must be a Waker or None");
        return NULL;
    }
    return ((waker_object *)object)->waker;
}
