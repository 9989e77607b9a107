/* py_object.h: how the binding's types make an instance and give it back. */
#ifndef SWX_PY_OBJECT_H
#define SWX_PY_OBJECT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* An instance of a type, all zeros but for its header.  NULL with MemoryError set. */
static inline PyObject *swx_py_allocate(PyTypeObject *type)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    return allocate(type, 0);
}

/* What a tp_dealloc ends with: frees the instance and drops its reference to its type. */
static inline void swx_py_deallocate(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

#endif
