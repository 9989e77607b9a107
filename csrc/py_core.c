/* The module swerex_c._core: its state, its beginning and its end. */
#include "py_core.h"

#include <dlfcn.h>
#include <msgpack.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "swx_command.h"
#include "swx_supervisor.h"

swx_py_state *swx_py_state_of(PyTypeObject *type) { return PyType_GetModuleState(type); }

PyObject *swx_py_raise(const swx_error *err)
{
    if (err->status == SWX_ENOMEM) {
        return PyErr_NoMemory();
    }
    if (err->status != SWX_ESYS) {
        return PyErr_Format(PyExc_ValueError, "%s", err->text);
    }
    PyObject *arguments =
        Py_BuildValue("(iN)", err->sys_errno, PyUnicode_FromFormat("%s: %s", err->call, strerror(err->sys_errno)));
    if (arguments) {
        PyErr_SetObject(PyExc_OSError, arguments);
        Py_DECREF(arguments);
    }
    return NULL;
}

void swx_py_engine_ref(swx_py_engine *engine) { atomic_fetch_add(&engine->references, 1); }

void swx_py_engine_unref(swx_py_engine *engine)
{
    if (atomic_fetch_sub(&engine->references, 1) == 1) {
        free(engine);
    }
}

static bool is_gone(const swx_py_engine *engine)
{
    return atomic_load(&engine->ended) || swx_reactor_is_forked(engine->reactor);
}

bool swx_py_engine_enter(swx_py_engine *engine)
{
    atomic_fetch_add(&engine->inside, 1); /* first: so it is freed after this look, or seen to have ended */
    if (!is_gone(engine)) {
        return true;
    }
    swx_py_engine_leave(engine);
    return false;
}

void swx_py_engine_leave(swx_py_engine *engine) { atomic_fetch_sub(&engine->inside, 1); }

PyThreadState *swx_py_lock(swx_py_engine *engine, swx_node *node)
{
    PyThreadState *thread = PyEval_SaveThread();
    if (swx_py_engine_enter(engine)) {
        swx_node_lock(node);
        return thread;
    }
    PyEval_RestoreThread(thread);
    return NULL;
}

void swx_py_unlock(swx_py_engine *engine, swx_node *node, PyThreadState *thread)
{
    swx_node_unlock(node);
    swx_py_engine_leave(engine);
    PyEval_RestoreThread(thread);
}

PyObject *swx_py_raise_gone(const swx_py_engine *engine, const char *what)
{
    const char *text = atomic_load(&engine->ended)
                           ? "this %s ended with the interpreter"
                           : "this %s belongs to the parent process: after fork() a child has to create its own";
    return PyErr_Format(PyExc_RuntimeError, text, what);
}

int swx_py_begin(swx_py_engine *engine, const char *what, swx_status (*start)(void *, const void *, swx_error *),
                 void *started, const void *config)
{
    swx_error err = { .status = SWX_OK };
    swx_status status = SWX_OK;
    bool entered;
    Py_BEGIN_ALLOW_THREADS
    entered = swx_py_engine_enter(engine);
    if (entered) {
        status = start(started, config, &err);
        swx_py_engine_leave(engine);
    }
    Py_END_ALLOW_THREADS
    if (entered && status == SWX_OK) {
        return 0;
    }
    entered ? swx_py_raise(&err) : swx_py_raise_gone(engine, what);
    return -1;
}

/* The executable lies beside the file that this is loaded from. */
static swx_status start_supervisor(uint64_t *mark, swx_error *err)
{
    static const char name[] = "_supervisor";
    Dl_info loaded;
    const char *slash = dladdr(name, &loaded) ? strrchr(loaded.dli_fname, '/') : NULL;
    size_t size = slash ? (size_t)(slash + 1 - loaded.dli_fname) : 0;
    char *executable = malloc(size + sizeof(name));
    if (!executable) {
        return swx_fail(err, SWX_ENOMEM, "out of memory");
    }
    memcpy(mempcpy(executable, size ? loaded.dli_fname : "", size), name, sizeof(name));
    swx_status status = swx_supervisor_start(executable, mark, err);
    free(executable);
    return status;
}

static swx_py_engine *engine_new(void)
{
    swx_error err;
    swx_py_engine *engine = calloc(1, sizeof(*engine));
    if (!engine) {
        PyErr_NoMemory();
        return NULL;
    }
    atomic_init(&engine->references, 1);
    if (swx_reactor_new(&engine->reactor, &err) != SWX_OK || start_supervisor(&engine->program_mark, &err) != SWX_OK) {
        swx_reactor_free(engine->reactor); /* NULL where there is none */
        free(engine);
        swx_py_raise(&err);
        return NULL;
    }
    return engine;
}

swx_py_engine *swx_py_engine_of(swx_py_state *state)
{
    if (state->engine && swx_reactor_is_forked(state->engine->reactor)) {
        swx_reactor_abandon(state->engine->reactor); /* the parent's; its sessions say so themselves */
        swx_py_engine_unref(state->engine);
        state->engine = NULL;
    }
    state->engine = state->engine ? state->engine : engine_new();
    return state->engine;
}

int swx_py_deadline(PyObject *seconds, int64_t now, int64_t *deadline)
{
    *deadline = INT64_MAX;
    if (seconds == Py_None) {
        return 0;
    }
    double value = PyFloat_AsDouble(seconds);
    if (value == -1.0 && PyErr_Occurred()) {
        return -1;
    }
    if (value != value || value < 0) {
        PyErr_SetString(PyExc_ValueError, "a time limit is a number of seconds that is not negative");
        return -1;
    }
    if (value < 9e9) { /* more is "no limit" */
        *deadline = now + (int64_t)(value * 1e9);
    }
    return 0;
}

int swx_py_path(PyObject *object, void *path)
{
    *(char **)path = NULL;
    return object == Py_None || PyBytes_AsStringAndSize(object, path, NULL) == 0; /* refuses NUL too */
}

/* The entry before the first is the tuple that holds the bytes objects, whose contents never change. */
char **swx_py_strings(PyObject *sequence)
{
    PyObject *tuple = PySequence_Tuple(sequence);
    Py_ssize_t count = tuple ? PyTuple_Size(tuple) : -1;
    char **block = tuple ? calloc((size_t)count + 2, sizeof(*block)) : NULL;
    if (!block) {
        if (tuple) {
            PyErr_NoMemory();
        }
        Py_XDECREF(tuple);
        return NULL;
    }
    block[0] = (char *)tuple;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(tuple, i), &block[1 + i], NULL) < 0) { /* refuses NUL too */
            swx_py_strings_free(block + 1);
            return NULL;
        }
    }
    return block + 1;
}

void swx_py_strings_free(char **strings)
{
    if (strings) {
        Py_DECREF((PyObject *)(void *)strings[-1]);
        free(strings - 1);
    }
}

/* ---- requests ---- */

void swx_request_init(swx_request *request, void (*destroy)(swx_request *), int references, swx_queue *queue)
{
    request->destroy = destroy;
    atomic_init(&request->references, references);
    if (queue) {
        swx_queue_ref(queue);
        request->queue = queue;
    }
}

void swx_request_unref(swx_request *request)
{
    if (atomic_fetch_sub(&request->references, 1) == 1) {
        swx_queue_unref(request->queue);
        request->destroy(request);
    }
}

void swx_request_completed(swx_request *request)
{
    bool queue = request->queue && !request->waits_inline;
    atomic_store(&request->done, true);
    if (queue && swx_queue_push(request->queue, &request->link)) {
        return;
    }
    swx_request_unref(request);
}

/* ---- the module ---- */

static PyObject *core_shutdown(PyObject *module, PyObject *Py_UNUSED(unused))
{
    swx_py_state *state = PyModule_GetState(module);
    swx_py_engine *engine = state->engine;
    state->engine = NULL;
    if (engine && !swx_reactor_is_forked(engine->reactor)) {
        atomic_store(&engine->ended, true);
        Py_BEGIN_ALLOW_THREADS
        while (atomic_load(&engine->inside)) { /* a call takes milliseconds */
            usleep(100);
        }
        swx_reactor_free(engine->reactor);
        Py_END_ALLOW_THREADS
    }
    if (engine) {
        swx_py_engine_unref(engine);
    }
    Py_RETURN_NONE;
}

static PyObject *core_node_count(PyObject *module, PyObject *Py_UNUSED(unused))
{
    const swx_py_state *state = PyModule_GetState(module);
    bool counts = state->engine && !is_gone(state->engine);
    return PyLong_FromSize_t(counts ? swx_reactor_count(state->engine->reactor) : 0);
}

static const char *const model_names[] = { "__dict__", "__pydantic_fields_set__", "__pydantic_extra__",
                                           "__pydantic_private__" };

/* Makes a pydantic model without validation.  In Python that is four calls of object.__setattr__, which take longer
 * than the answer to a command. */
static PyObject *core_model(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    const swx_py_state *state = PyModule_GetState(module);
    if (count != 3 || !PyType_Check(args[0]) || !PyDict_Check(args[1])) {
        return PyErr_Format(PyExc_TypeError, "model() takes a class, a dict and a set of names");
    }
    PyTypeObject *type = (PyTypeObject *)args[0];
    PyObject *set = PySet_New(args[2]);
    PyObject *model = set ? PyType_GenericAlloc(type, 0) : NULL, *values[] = { args[1], set, Py_None, Py_None };
    for (size_t i = 0; model && i < SWX_COUNT(values); i++) {
        if (PyObject_GenericSetAttr(model, state->model_names[i], values[i]) < 0) {
            Py_CLEAR(model);
        }
    }
    Py_XDECREF(set);
    return model;
}

static PyMethodDef core_functions[] = {
    { "model", (PyCFunction)(void (*)(void))core_model, METH_FASTCALL, "model(cls, values, names, /)\n--\n\n" },
    { "_shutdown", core_shutdown, METH_NOARGS, "_shutdown()\n--\n\n" },
    { "node_count", core_node_count, METH_NOARGS, "node_count()\n--\n\n" },
    { "kill_marked", swx_py_kill_marked, METH_O, "kill_marked(marks, /)\n--\n\n" },
    { "living_marks", swx_py_living_marks, METH_O, "living_marks(marks, /)\n--\n\n" },
    { "scan", swx_py_scan, METH_O, "scan(command, /)\n--\n\n" },
    { "quote", swx_py_quote, METH_O, "quote(command, /)\n--\n\n" },
    { NULL, NULL, 0, NULL },
};

/* Stops the reactor at exit, while threads can still be joined. */
static int register_exit(PyObject *module)
{
    PyObject *atexit = PyImport_ImportModule("atexit");
    PyObject *result =
        atexit ? PyObject_CallMethod(atexit, "register", "N", PyObject_GetAttrString(module, "_shutdown")) : NULL;
    Py_XDECREF(result);
    Py_XDECREF(atexit);
    return result ? 0 : -1;
}

static PyType_Spec *const specs[SWX_PY_TYPES] = {
    [SWX_PY_COMPLETIONS] = &swx_py_completions_spec, [SWX_PY_OPERATION] = &swx_py_operation_spec,
    [SWX_PY_SESSION] = &swx_py_session_spec,         [SWX_PY_PROCESS] = &swx_py_process_spec,
    [SWX_PY_MATCHER] = &swx_py_matcher_spec,         [SWX_PY_STRIP] = &swx_py_strip_spec,
    [SWX_PY_ENCODER] = &swx_py_encoder_spec,         [SWX_PY_DECODER] = &swx_py_decoder_spec,
};

static int add_types(PyObject *module, swx_py_state *state)
{
    for (size_t i = 0; i < SWX_PY_TYPES; i++) {
        state->types[i] = (PyTypeObject *)PyType_FromModuleAndSpec(module, specs[i], NULL);
        if (!state->types[i] || PyModule_AddType(module, state->types[i]) < 0) {
            return -1;
        }
    }
    state->frame_error = PyErr_NewException("swerex_c._core.FrameError", PyExc_ValueError, NULL);
    return state->frame_error ? PyModule_AddObjectRef(module, "FrameError", state->frame_error) : -1;
}

static int core_exec(PyObject *module)
{
    swx_py_state *state = PyModule_GetState(module);
    for (size_t i = 0; i < SWX_COUNT(model_names); i++) {
        state->model_names[i] = PyUnicode_InternFromString(model_names[i]);
        if (!state->model_names[i]) {
            return -1;
        }
    }
    if (add_types(module, state) < 0 || PyModule_AddStringConstant(module, "msgpack_version", MSGPACK_VERSION) < 0 ||
        PyModule_AddIntConstant(module, "SCAN_BACKSLASH_END", SWX_SCAN_BACKSLASH_END) < 0 ||
        PyModule_AddIntConstant(module, "SCAN_EXEC", SWX_SCAN_EXEC) < 0 ||
        PyModule_AddIntConstant(module, "SCAN_PROMPT", SWX_SCAN_PROMPT) < 0) {
        return -1;
    }
    return register_exit(module);
}

static int core_traverse(PyObject *module, visitproc visit, void *arg)
{
    const swx_py_state *state = PyModule_GetState(module);
    for (size_t i = 0; i < SWX_PY_TYPES; i++) {
        Py_VISIT(state->types[i]);
    }
    Py_VISIT(state->frame_error);
    return 0;
}

static int core_clear(PyObject *module)
{
    swx_py_state *state = PyModule_GetState(module);
    for (size_t i = 0; i < SWX_PY_TYPES; i++) {
        Py_CLEAR(state->types[i]);
    }
    Py_CLEAR(state->frame_error);
    for (size_t i = 0; i < SWX_COUNT(model_names); i++) {
        Py_CLEAR(state->model_names[i]);
    }
    return 0;
}

static void core_free(void *module)
{
    PyObject *ignored = core_shutdown(module, NULL);
    Py_XDECREF(ignored);
    core_clear(module);
}

static PyModuleDef_Slot core_slots[] = {
    { Py_mod_exec, core_exec },
    { 0, NULL },
};

static PyModuleDef core_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_core",
    .m_doc = "The engine of swerex_c: terminal sessions, processes, patterns, frames.",
    .m_size = sizeof(swx_py_state),
    .m_methods = core_functions,
    .m_slots = core_slots,
    .m_traverse = core_traverse,
    .m_clear = core_clear,
    .m_free = core_free,
};

PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&core_module); }
