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

/* Makes a type and adds it to the module.  A new reference, or NULL with an exception set. */
static inline PyTypeObject *swx_py_add_type(PyObject *module, PyType_Spec *spec)
{
    PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    if (type && PyModule_AddType(module, type) < 0) {
        Py_CLEAR(type);
    }
    return type;
}

#endif
