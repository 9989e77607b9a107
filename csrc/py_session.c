/* Session: a session behind the reactor, for Python. */
#include "py_session.h"

#include <string.h>

/* Gives a request its patterns: a Matcher, or a tuple of what tells the caller of output that it has to search itself,
 * which is borrowed.  0, or -1 with an exception set. */
static int set_patterns(const swx_py_state *state, operation_object *op, PyObject *patterns)
{
    request *req = op->request;
    if (PyTuple_Check(patterns)) {
        req->news.future = PyTuple_GetItem(patterns, 0);
        req->op.searched_by_owner = true;
        req->op.news = swx_py_request_tell_news;
        return req->news.future ? 0 : -1;
    }
    req->op.match = swx_py_match_take(state, patterns);
    return req->op.match ? 0 : -1;
}

/* Steals the request.  matcher, future and news may be None. */
static PyObject *launch(session_object *self, request *req, PyObject *matcher, PyObject *future, PyObject *news,
                        int64_t inline_wait)
{
    swx_py_state *state = swx_py_state_of(Py_TYPE((PyObject *)self));
    operation_object *op = (operation_object *)PyType_GenericAlloc(state->types[SWX_PY_OPERATION], 0);
    if (!op) {
        swx_request_unref(&req->base);
        return NULL;
    }
    op->request = req;
    if (matcher != Py_None && set_patterns(state, op, matcher) < 0) {
        atomic_store(&req->base.done, true); /* nothing to cancel */
        Py_DECREF((PyObject *)op);
        return NULL;
    }
    op->matcher = Py_NewRef(matcher);
    op->future = Py_NewRef(future);
    req->base.future = future == Py_None ? NULL : future;
    op->news = Py_NewRef(news);
    if (news != Py_None) {
        req->news.future = news;
        req->op.stream = true;
        req->op.news = swx_py_request_tell_news;
    }
    if (!swx_py_request_submit(req, inline_wait)) {
        atomic_store(&req->base.done, true); /* nothing to cancel */
        Py_CLEAR(op);
    }
    return (PyObject *)op;
}

static int set_limits(request *req, PyObject *timeout, PyObject *quiet)
{
    int64_t now = swx_now(), silent;
    if (swx_py_deadline(timeout, now, &req->op.deadline) < 0 || swx_py_deadline(quiet, now, &silent) < 0) {
        return -1;
    }
    req->op.quiet = silent == INT64_MAX ? 0 : silent - now;
    return 0;
}

static PyObject *session_run(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    session_object *self = (session_object *)object;
    if (count < 9 || count > 12) {
        return PyErr_Format(PyExc_TypeError,
                            "run() takes command, checked, timeout, quiet, matcher, queue, future, news, "
                            "inline_wait and perhaps wake_fd, grace and ahead");
    }
    long checked = PyLong_AsLong(args[1]);
    long inline_wait = PyLong_AsLong(args[8]);
    long wake_fd = count > 9 && !PyErr_Occurred() ? PyLong_AsLong(args[9]) : -1;
    long grace = count > 10 && !PyErr_Occurred() ? PyLong_AsLong(args[10]) : 0;
    int ahead = count > 11 && !PyErr_Occurred() ? PyObject_IsTrue(args[11]) : 0;
    if (PyErr_Occurred()) {
        return NULL;
    }
    request *req = swx_py_request_new(self, SWX_OP_RUN, args[5]);
    if (!req) {
        return NULL;
    }
    int encoded = set_limits(req, args[2], args[3]) < 0 ? -1 : swx_py_request_encode(req, args[0], (int)checked);
    if (encoded < 0) {
        swx_request_unref(&req->base);
        return NULL;
    }
    req->op.held = encoded == 0;
    req->op.ahead = ahead > 0;
    req->op.grace = (int64_t)grace * 1000000;
    req->wake_fd = (int)wake_fd;
    PyObject *op = launch(self, req, args[4], args[6], args[7], encoded ? (int64_t)inline_wait * 1000 : 0);
    if (op && !encoded) {
        ((operation_object *)op)->command = Py_NewRef(args[0]);
    }
    return op;
}

/* start() and line(), which differ in kind and limits only. */
static PyObject *launch_text(session_object *self, swx_op_kind kind, PyObject *text, PyObject *timeout, PyObject *quiet,
                             PyObject *patience, PyObject *matcher, PyObject *queue, PyObject *future, PyObject *news)
{
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(text, &bytes, &size) < 0) {
        return NULL;
    }
    if (memchr(bytes, 0, (size_t)size)) {
        return PyErr_Format(PyExc_ValueError, "it contains a NUL byte, which no shell can be given");
    }
    request *req = swx_py_request_new(self, kind, queue);
    if (!req) {
        return NULL;
    }
    int64_t now = swx_now(), until;
    if (swx_py_deadline(patience, now, &until) < 0 || set_limits(req, timeout, quiet) < 0) {
        swx_request_unref(&req->base);
        return NULL;
    }
    if (kind == SWX_OP_START) { /* the clock starts when the shell is there */
        req->op.step = req->op.deadline == SWX_NEVER ? SWX_NEVER : req->op.deadline - swx_now();
        req->op.deadline = SWX_NEVER;
        req->op.patience = until == SWX_NEVER ? 0 : until - now + 1;
    }
    if (swx_buf_append(&req->typed, bytes, (size_t)size) != SWX_OK) {
        swx_request_unref(&req->base);
        return PyErr_NoMemory();
    }
    return launch(self, req, matcher, future, news, 0);
}

static PyObject *session_start(PyObject *object, PyObject *args)
{
    PyObject *script, *timeout, *queue, *future, *patience = Py_None;
    if (!PyArg_ParseTuple(args, "OOOO|O:start", &script, &timeout, &queue, &future, &patience)) {
        return NULL;
    }
    return launch_text((session_object *)object, SWX_OP_START, script, timeout, Py_None, patience, Py_None, queue,
                       future, Py_None);
}

static PyObject *session_line(PyObject *object, PyObject *args)
{
    PyObject *text, *timeout, *quiet, *matcher, *queue, *future, *news;
    if (!PyArg_ParseTuple(args, "OOOOOOO:line", &text, &timeout, &quiet, &matcher, &queue, &future, &news)) {
        return NULL;
    }
    return launch_text((session_object *)object, SWX_OP_LINE, text, timeout, quiet, Py_None, matcher, queue, future,
                       news);
}

static PyObject *session_interrupt(PyObject *object, PyObject *args)
{
    session_object *self = (session_object *)object;
    PyObject *matcher, *queue, *future;
    double step;
    unsigned tries;
    int silent = 0;
    if (!PyArg_ParseTuple(args, "dIOOO|p:interrupt", &step, &tries, &matcher, &queue, &future, &silent)) {
        return NULL;
    }
    if (!(step >= 0 && step < 1e6)) {
        return PyErr_Format(PyExc_ValueError,
                            "the timeout of an interrupt is a number of seconds that is not negative");
    }
    request *req = swx_py_request_new(self, SWX_OP_INTERRUPT, queue);
    if (!req) {
        return NULL;
    }
    req->op.step = (int64_t)(step * 1e9);
    req->op.tries = tries;
    req->op.silent = silent;
    return launch(self, req, matcher, future, Py_None, 0);
}

static PyObject *session_close(PyObject *object, PyObject *args)
{
    session_object *self = (session_object *)object;
    PyObject *queue, *future;
    if (!PyArg_ParseTuple(args, "OO:close", &queue, &future)) {
        return NULL;
    }
    request *req = swx_py_request_new(self, SWX_OP_CLOSE, queue);
    return req ? launch(self, req, Py_None, future, Py_None, 0) : NULL;
}

static PyObject *session_type(PyObject *object, PyObject *bytes_object)
{
    session_object *self = (session_object *)object;
    char *bytes;
    Py_ssize_t size;
    PyThreadState *thread;
    if (PyBytes_AsStringAndSize(bytes_object, &bytes, &size) < 0 || !(thread = swx_py_session_enter(self->handle))) {
        return NULL;
    }
    swx_status status = swx_session_type(self->handle->session, (const uint8_t *)bytes, (size_t)size, swx_now());
    swx_py_session_leave(self->handle, thread);
    return status == SWX_ENOMEM ? PyErr_NoMemory() : PyBool_FromLong(status == SWX_OK);
}

static PyObject *session_resync(PyObject *object, PyObject *commands_object)
{
    session_object *self = (session_object *)object;
    unsigned long long commands = PyLong_AsUnsignedLongLong(commands_object);
    PyThreadState *thread;
    if (PyErr_Occurred() || !(thread = swx_py_session_enter(self->handle))) {
        return NULL;
    }
    bool asked = swx_session_resync(self->handle->session, commands, swx_now());
    swx_py_session_leave(self->handle, thread);
    return PyBool_FromLong(asked);
}

static PyObject *session_facts(PyObject *object, PyObject *Py_UNUSED(unused))
{
    session_object *self = (session_object *)object;
    PyThreadState *thread = swx_py_session_enter(self->handle);
    if (!thread) {
        return NULL;
    }
    swx_session_state facts = swx_session_look(self->handle->session);
    int pid = (int)swx_session_pid(self->handle->session);
    swx_py_session_leave(self->handle, thread);
    return Py_BuildValue("{sOsOsOsOsOsLsKsKsi}", "kernel_proof", facts.kernel_proof ? Py_True : Py_False, "idle",
                         facts.idle ? Py_True : Py_False, "dead", facts.dead ? Py_True : Py_False, "doubtful",
                         facts.doubtful ? Py_True : Py_False, "hides", facts.hides ? Py_True : Py_False, "commenced",
                         (long long)facts.commenced, "commands", (unsigned long long)facts.commands, "late",
                         (unsigned long long)facts.late, "pid", pid);
}

static void unwatch(void *owner, int fd) { swx_node_unwatch(owner, fd); }

static swx_status start(void *started, const void *config, swx_error *err)
{
    session_handle *handle = started;
    swx_status status = swx_session_new(&handle->session, config, swx_now(), err);
    if (status == SWX_OK) {
        status = swx_reactor_add(handle->engine->reactor, &handle->node, &swx_py_session_node, handle->session, err);
        if (status == SWX_OK) {
            swx_session_set_unwatch(handle->session, unwatch, handle->node);
            swx_node_unlock(handle->node);
        } else {
            swx_session_free(handle->session);
        }
    }
    return status;
}

/* Starts a session.  NULL with an exception set. */
static session_handle *start_session(swx_py_state *state, swx_session_config *config)
{
    swx_py_engine *engine = swx_py_engine_of(state);
    session_handle *handle = engine ? calloc(1, sizeof(*handle)) : NULL;
    if (!handle) {
        return engine ? (session_handle *)PyErr_NoMemory() : NULL;
    }
    atomic_init(&handle->references, 1);
    swx_py_engine_ref(engine);
    handle->engine = engine;
    handle->elsewhere = config->argv != NULL;
    config->program_mark = engine->program_mark;
    if (swx_py_begin(engine, "session", start, handle, config) < 0) {
        swx_py_engine_unref(engine);
        free(handle);
        return NULL;
    }
    return handle;
}

static PyObject *session_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = { "program", "environment", "directory", "rows", "columns", "output_limit", "argv", NULL };
    PyObject *environment, *argv_arg = Py_None;
    Py_ssize_t limit;
    swx_session_config config = { 0 };
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "yOO&IIn|O:Session", names, &config.program, &environment,
                                     swx_py_path, &config.directory, &config.rows, &config.columns, &limit,
                                     &argv_arg)) {
        return NULL;
    }
    if (limit < 2) {
        return PyErr_Format(PyExc_ValueError, "output_limit is a number of bytes, at least 2");
    }
    config.output_limit = (size_t)limit;
    char **variables = swx_py_strings(environment);
    char **argv = variables && argv_arg != Py_None ? swx_py_strings(argv_arg) : NULL;
    if (argv && !argv[0]) {
        PyErr_SetString(PyExc_ValueError, "argv is the program that carries the terminal, and its arguments");
    }
    config.environment = variables;
    config.argv = argv;
    PyObject *self = PyErr_Occurred() ? NULL : PyType_GenericAlloc(type, 0);
    if (self && !(((session_object *)self)->handle = start_session(swx_py_state_of(type), &config))) {
        Py_CLEAR(self);
    }
    swx_py_strings_free(argv);
    swx_py_strings_free(variables);
    return self;
}

static void session_dealloc(PyObject *object)
{
    session_object *self = (session_object *)object;
    if (self->handle) {
        swx_py_session_unref(self->handle);
    }
    swx_py_deallocate(object);
}

static PyMethodDef session_methods[] = {
    { "start", session_start, METH_VARARGS, "start($self, script, timeout, queue, future, patience=None, /)\n--\n\n" },
    { "run", (PyCFunction)(void (*)(void))session_run, METH_FASTCALL,
      "run($self, command, checked, timeout, quiet, matcher, queue, future, news, inline_wait, wake_fd=-1, grace=0, "
      "ahead=False, /)\n--\n\n" },
    { "line", session_line, METH_VARARGS,
      "line($self, text, timeout, quiet, matcher, queue, future, news, /)\n--\n\n" },
    { "interrupt", session_interrupt, METH_VARARGS,
      "interrupt($self, step, tries, matcher, queue, future, silent=False, /)\n--\n\n" },
    { "close", session_close, METH_VARARGS, "close($self, queue, future, /)\n--\n\n" },
    { "type", session_type, METH_O, "type($self, data, /)\n--\n\n" },
    { "resync", session_resync, METH_O, "resync($self, commands, /)\n--\n\n" },
    { "facts", session_facts, METH_NOARGS, "facts($self, /)\n--\n\n" },
    { NULL, NULL, 0, NULL },
};

PyType_Spec swx_py_session_spec = SWX_PY_SPEC(
    "Session", session_object, 0,
    { Py_tp_doc, "Session(program, environment, directory, rows, columns, output_limit, argv=None)\n--\n\n" },
    { Py_tp_new, session_new }, { Py_tp_dealloc, session_dealloc }, { Py_tp_methods, session_methods });
