/* Process: one program with pipes, run to its end by the reactor. */
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>

#include "py_core.h"
#include "swx_tree.h"
#include "swx_exec.h"

typedef struct {
    swx_request base; /* first; references: the object's, the core's until it has completed, and the node's */
    swx_py_engine *engine;
    swx_node *node;
    swx_exec *exec;
    swx_exec_result result; /* when it is done */
    uint64_t mark;
} request;

typedef struct {
    PyObject_HEAD
    request *request;
    PyObject *future;
} process_object;

/* ---- the node type ---- */

static void remove_finished(const swx_exec *exec)
{
    if (swx_exec_is_finished(exec)) {
        swx_reactor_remove(((request *)swx_exec_owner(exec))->node);
    }
}

/* Its descriptors are watched for reading alone. */
static void node_event(void *object, unsigned which, bool Py_UNUSED(readable), bool Py_UNUSED(writable),
                       int64_t Py_UNUSED(now))
{
    swx_exec_event(object, which);
    remove_finished(object);
}

static int64_t node_deadline(const void *object) { return swx_exec_deadline(object); }
static void node_due(void *object, int64_t now) { swx_exec_due(object, now); }

static swx_interest node_interest(const void *object, unsigned which)
{
    return (swx_interest){ .fd = swx_exec_fd(object, which), .read = true };
}

/* The exec refers to the request until its end, which may come long after the program's: see swx_exec.h. */
static void node_destroy(void *object)
{
    request *req = swx_exec_owner(object);
    swx_exec_free(object);
    if (!atomic_load(&req->base.done)) { /* it never will be */
        swx_request_unref(&req->base);
    }
    swx_request_unref(&req->base);
}

static bool node_slow(const void *object) { return swx_exec_is_slow(object); }
static swx_child *node_child(void *object) { return swx_exec_doomed(object); }

static void unwatch(void *owner, int fd) { swx_node_unwatch(((request *)owner)->node, fd); }

static const swx_node_type process_node = { .event = node_event,
                                            .deadline = node_deadline,
                                            .due = node_due,
                                            .interest = node_interest,
                                            .destroy = node_destroy,
                                            .slow = node_slow,
                                            .child = node_child };

static void request_destroy(swx_request *base)
{
    request *req = (request *)base;
    swx_buf_free(&req->result.output);
    swx_buf_free(&req->result.error);
    swx_py_engine_unref(req->engine);
    free(req);
}

static void exec_done(swx_exec *exec)
{
    request *req = swx_exec_owner(exec);
    req->result = swx_exec_take_result(exec);
    swx_request_completed(&req->base);
}

/* ---- the object ---- */

static PyObject *process_cancel(PyObject *object, PyObject *Py_UNUSED(unused))
{
    request *req = ((process_object *)object)->request;
    PyThreadState *thread = atomic_load(&req->base.done) ? NULL : swx_py_lock(req->engine, req->node);
    if (thread) {
        swx_exec_cancel(req->exec, swx_now());
        swx_py_unlock(req->engine, req->node, thread);
    }
    Py_RETURN_NONE;
}

/* Gives the node to the reactor.  A program that runs is killed.  The node of one that has ended stays until its pipes
 * are closed, because a grandchild may still write into them; then it is removed.  From the unlock on the node must not
 * be used. */
static void give_up(request *req)
{
    swx_node *node = req->node;
    PyThreadState *thread = swx_py_lock(req->engine, node);
    if (!thread) {
        return;
    }
    swx_exec_event(req->exec, 2); /* it may have ended */
    if (atomic_load(&req->base.done)) {
        swx_exec_release(req->exec);
        remove_finished(req->exec);
    } else {
        swx_reactor_remove(node);
    }
    swx_py_unlock(req->engine, node, thread);
}

static int process_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((process_object *)object)->future);
    return 0;
}

static int process_clear(PyObject *object)
{
    process_object *self = (process_object *)object;
    if (self->request) {
        self->request->base.future = NULL;
    }
    Py_CLEAR(self->future);
    return 0;
}

static void process_dealloc(PyObject *object)
{
    process_object *self = (process_object *)object;
    PyObject_GC_UnTrack(object);
    process_clear(object);
    if (self->request) {
        if (self->request->node) {
            give_up(self->request);
        }
        swx_request_unref(&self->request->base);
    }
    swx_py_deallocate(object);
}

static swx_status start(void *started, const void *config, swx_error *err)
{
    request *req = started;
    swx_status status = swx_exec_new(&req->exec, config, err);
    if (status == SWX_OK) {
        req->mark = swx_exec_mark(req->exec);
        status = swx_reactor_add(req->engine->reactor, &req->node, &process_node, req->exec, err);
        if (status == SWX_OK) {
            swx_node_unlock(req->node);
        } else {
            swx_exec_free(req->exec);
        }
    }
    return status;
}

/* Starts a program; future: borrowed.  NULL with an exception set. */
static request *start_program(swx_py_state *state, swx_queue *queue, PyObject *future, swx_exec_config *config)
{
    swx_py_engine *engine = swx_py_engine_of(state);
    request *req = engine ? calloc(1, sizeof(*req)) : NULL;
    if (!req) {
        return engine ? (request *)PyErr_NoMemory() : NULL;
    }
    swx_request_init(&req->base, request_destroy, 3, queue);
    swx_py_engine_ref(engine);
    req->engine = engine;
    req->base.future = future == Py_None ? NULL : future;
    config->program_mark = engine->program_mark;
    config->done = exec_done;
    config->unwatch = unwatch;
    config->owner = req;
    if (swx_py_begin(engine, "process", start, req, config) < 0) {
        for (int reference = 0; reference < 3; reference++) { /* ours, the core's and the node's */
            swx_request_unref(&req->base);
        }
        return NULL;
    }
    return req;
}

static PyObject *process_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = { "file",    "argv",         "environment", "directory", "input", "merge",
                             "timeout", "output_limit", "queue",       "future",    NULL };
    PyObject *argv_list, *environment, *timeout, *queue_arg, *future;
    const char *input;
    Py_ssize_t input_size, limit;
    int merge;
    swx_py_state *state = swx_py_state_of(type);
    swx_exec_config config = { 0 };
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "yOOO&y#pOnOO:Process", names, &config.file, &argv_list,
                                     &environment, swx_py_path, &config.directory, &input, &input_size, &merge,
                                     &timeout, &limit, &queue_arg, &future)) {
        return NULL;
    }
    swx_queue *queue = swx_py_queue_get(state, queue_arg);
    if (PyErr_Occurred() || swx_py_deadline(timeout, swx_now(), &config.deadline) < 0) {
        return NULL;
    }
    config.input = (const uint8_t *)input;
    config.input_size = (size_t)input_size;
    config.merge = merge;
    config.output_limit = limit < 2 ? 2 : (size_t)limit;
    char **argv = swx_py_strings(argv_list), **variables = argv ? swx_py_strings(environment) : NULL;
    if (variables && !argv[0]) {
        PyErr_SetString(PyExc_ValueError, "the command is empty");
    }
    config.argv = argv;
    config.environment = variables;
    process_object *self = PyErr_Occurred() ? NULL : (process_object *)PyType_GenericAlloc(type, 0);
    if (self) {
        self->future = Py_NewRef(future);
        self->request = start_program(state, queue, future, &config);
        if (!self->request) {
            Py_CLEAR(self);
        }
    }
    swx_py_strings_free(argv);
    swx_py_strings_free(variables);
    return (PyObject *)self;
}

static PyObject *returncode_of(int wait_status)
{
    if (wait_status == SWX_STATUS_LOST) {
        Py_RETURN_NONE;
    }
    return PyLong_FromLong(WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -WTERMSIG(wait_status));
}

static const char *end_of(const swx_exec_result *result)
{
    return result->timed_out                        ? "timeout"
           : result->cancelled                      ? "cancelled"
           : result->no_memory                      ? "memory"
           : result->wait_status == SWX_STATUS_LOST ? "lost"
                                                    : "done";
}

/* The attributes: the first two can be read at all times, the others once it has ended. */
typedef enum { DONE, MARK, END, STDOUT, STDERR, RETURNCODE } fact;

static PyObject *process_fact(PyObject *object, void *which)
{
    const request *req = ((process_object *)object)->request;
    const fact wanted = (fact)(intptr_t)which;
    bool done = atomic_load(&req->base.done);
    if (!done && wanted > MARK) {
        return PyErr_Format(PyExc_RuntimeError, "the process has not ended yet");
    }
    switch (wanted) {
    case DONE: return PyBool_FromLong(done);
    case MARK: return PyLong_FromUnsignedLongLong(req->mark);
    case END: return PyUnicode_FromString(end_of(&req->result));
    case STDOUT: return swx_py_bytes(&req->result.output);
    case STDERR: return swx_py_bytes(&req->result.error);
    case RETURNCODE: return returncode_of(req->result.wait_status);
    }
    Py_UNREACHABLE();
}

static PyMethodDef process_methods[] = {
    { "cancel", process_cancel, METH_NOARGS, "cancel($self, /)\n--\n\n" },
    { NULL, NULL, 0, NULL },
};

static PyGetSetDef process_attributes[] = {
    SWX_PY_FACT("done", process_fact, DONE),
    SWX_PY_FACT("mark", process_fact, MARK),
    SWX_PY_FACT("end", process_fact, END),
    SWX_PY_FACT("stdout", process_fact, STDOUT),
    SWX_PY_FACT("stderr", process_fact, STDERR),
    SWX_PY_FACT("returncode", process_fact, RETURNCODE),
    { NULL, NULL, NULL, NULL, NULL },
};

PyType_Spec swx_py_process_spec = SWX_PY_SPEC(
    "Process", process_object, Py_TPFLAGS_HAVE_GC,
    { Py_tp_doc,
      "Process(file, argv, environment, directory, input, merge, timeout, output_limit, queue, future)\n--\n\n" },
    { Py_tp_new, process_new }, { Py_tp_dealloc, process_dealloc }, { Py_tp_traverse, process_traverse },
    { Py_tp_clear, process_clear }, { Py_tp_methods, process_methods }, { Py_tp_getset, process_attributes });

/* ---- marks ---- */

/* A bytes object's contents are aligned for numbers.  NULL: an exception is set. */
static const uint64_t *marks_of(PyObject *object, size_t *count)
{
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(object, &bytes, &size) < 0) {
        return NULL;
    }
    *count = (size_t)size / sizeof(uint64_t);
    return (const uint64_t *)(const void *)bytes;
}

PyObject *swx_py_kill_marked(PyObject *Py_UNUSED(module), PyObject *bytes)
{
    size_t count;
    const uint64_t *marks = marks_of(bytes, &count);
    long found;
    if (!marks) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    found = swx_tree_kill_marked(marks, count);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(found);
}

PyObject *swx_py_living_marks(PyObject *Py_UNUSED(module), PyObject *bytes)
{
    size_t count;
    const uint64_t *marks = marks_of(bytes, &count);
    PyObject *result = marks ? PyBytes_FromStringAndSize(NULL, (Py_ssize_t)count) : NULL;
    if (!result) {
        return NULL;
    }
    bool *living = (bool *)PyBytes_AsString(result);
    Py_BEGIN_ALLOW_THREADS
    if (!swx_tree_living(marks, count, living)) {
        memset(living, true, count);
    }
    Py_END_ALLOW_THREADS
    return result;
}
