/* Session and Operation: the session room behind the reactor, for Python. */
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/prctl.h>

#include "py_core.h"
#include "py_match.h"
#include "swx_alloc.h"
#include "swx_session.h"
#include "swx_command.h"

/* A session in the reactor.  Shared by the Session object and by every operation under way. */
typedef struct {
    atomic_int references;
    swx_py_home *home;
    swx_node *node;
    swx_session *session;
    bool carrier;    /* see swx_session.h */
    unsigned spoils; /* of swx_spoils, by the texts so far */
} place;

typedef struct {
    swx_request base; /* first */
    swx_request news; /* tells of output while it runs; its references are 1 while it is queued */
    atomic_bool news_queued;
    swx_op op;
    bool empty; /* a command of blanks and comments: its exit code is 0, whatever `$?` is */
    swx_buf typed;
    int64_t slack; /* nanoseconds that the caller may wait longer than it said */
    place *at;
} request;

typedef struct {
    PyObject_HEAD
    request *request;
    PyObject *matcher, *future, *news;
    PyObject *command; /* while it is held; else NULL */
} operation_object;

typedef struct {
    PyObject_HEAD
    place *at;
} session_object;

enum { DELIVERY_LIMIT = 256 << 20 };

/* ---- the node type ---- */

static void node_event(void *object, unsigned which, bool readable, bool writable, int64_t now)
{
    swx_session *s = object;
    if (which == 1) {
        swx_session_ended(s, now);
        return;
    }
    if (readable) {
        swx_session_readable(s, now);
    }
    if (writable) {
        swx_session_writable(s, now);
    }
}

static int64_t node_deadline(const void *object) { return swx_session_deadline(object); }
static void node_due(void *object, int64_t now) { swx_session_due(object, now); }

static void node_interest(const void *object, unsigned which, int *fd, bool *read, bool *write)
{
    const swx_session *s = object;
    if (which == 0) {
        *fd = swx_session_terminal(s);
        *read = swx_session_wants_read(s);
        *write = swx_session_wants_write(s);
    } else if (which == 1) {
        *fd = swx_session_look(s).dead ? -1 : swx_session_pidfd(s);
        *read = true;
    }
}

static void node_destroy(void *object) { swx_session_free(object); }
static bool node_slow(const void *object) { return swx_session_is_slow(object); }
static swx_child *node_child(void *object) { return swx_session_doomed(object); }

static void unwatch(void *owner, int fd) { swx_node_unwatch(owner, fd); }

static const swx_node_type session_node = { node_event, node_deadline, node_due,  node_interest,
                                            NULL,       node_destroy,  node_slow, node_child };

/* ---- places ---- */

static bool gone(const place *at) { return swx_py_home_is_gone(at->home); }
static PyObject *raise_gone(const place *at) { return swx_py_raise_gone(at->home, "session"); }

/* As swx_node_lock, to be called without the GIL.  False: it is gone, and nothing is locked.  (In a forked child the
 * lock may be held by a thread that is not there.) */
static bool lock(place *at)
{
    if (!swx_py_home_enter(at->home)) {
        return false;
    }
    swx_node_lock(at->node);
    return true;
}

static void unlock(place *at)
{
    swx_node_unlock(at->node);
    swx_py_home_leave(at->home);
}

static void place_unref(place *at)
{
    if (atomic_fetch_sub(&at->references, 1) == 1) {
        if (swx_py_home_enter(at->home)) {
            swx_reactor_remove(at->node);
            swx_py_home_leave(at->home);
        }
        swx_py_home_unref(at->home);
        swx_free(at);
    }
}

/* ---- requests ---- */

static void request_destroy(swx_request *base)
{
    request *f = (request *)base;
    swx_buf_free(&f->op.output);
    swx_buf_free(&f->typed);
    place_unref(f->at);
    swx_free(f);
}

static void news_destroy(swx_request *news)
{
    request *f = (request *)((char *)news - offsetof(request, news));
    atomic_store(&f->news_queued, false);
    swx_request_unref(&f->base);
}

static void op_done(swx_op *op) { swx_request_completed(&((request *)op->owner)->base); }

static void op_news(swx_op *op)
{
    request *f = op->owner;
    if (f->base.queue && !f->base.direct && !atomic_exchange(&f->news_queued, true)) {
        atomic_store(&f->news.references, 1);
        atomic_fetch_add(&f->base.references, 1);
        swx_queue_ref(f->base.queue); /* given back when the reference above is */
        f->news.queue = f->base.queue;
        if (!swx_queue_push(f->base.queue, &f->news.wake)) {
            swx_request_unref(&f->news);
        }
    }
}

static request *request_new(place *at, swx_op_kind kind, swx_queue *queue)
{
    request *f = swx_calloc(1, sizeof(*f));
    if (!f) {
        PyErr_NoMemory();
        return NULL;
    }
    f->base.destroy = request_destroy;
    f->news.destroy = news_destroy;
    atomic_init(&f->base.references, 1);
    atomic_init(&f->base.done, false);
    if (queue) {
        swx_queue_ref(queue);
        f->base.queue = queue;
    }
    f->op = (swx_op){ .kind = kind, .deadline = SWX_NEVER, .done = op_done, .owner = f };
    swx_buf_init(&f->typed, DELIVERY_LIMIT);
    swx_buf_init(&f->op.output, 2);
    f->at = at;
    atomic_fetch_add(&at->references, 1);
    return f;
}

/* For up to `limit` nanoseconds the calling thread does the reactor's work for this session: a short command ends
 * without any other thread being woken.  It may be `slack` nanoseconds more where it ends in vain: a timer that may be
 * late is not programmed into the clock, which on a virtual machine takes longer than the command.  Node locked, no
 * GIL. */
static void work_directly(request *f, int64_t limit, int64_t slack)
{
    swx_session *s = f->at->session;
    int before = slack > 0 ? prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0) : 0;
    if (before > 0) {
        prctl(PR_SET_TIMERSLACK, (unsigned long)slack, 0, 0, 0);
    }
    int64_t until = swx_now() + limit;
    while (!atomic_load(&f->base.done)) {
        int64_t now = swx_now(), due = swx_session_deadline(s);
        if (now >= until) {
            break;
        }
        due = due < until ? due : until;
        struct pollfd terminal = { .fd = swx_session_terminal(s), .events = swx_session_wants_read(s) ? POLLIN : 0 };
        if (swx_session_wants_write(s)) {
            terminal.events |= POLLOUT;
        }
        int64_t left = due > now ? due - now : 0;
        struct timespec wait = { .tv_sec = left / 1000000000, .tv_nsec = left % 1000000000 };
        int count = ppoll(&terminal, 1, &wait, NULL);
        now = swx_now();
        if (count < 0 && errno != EINTR) {
            break;
        }
        if (count > 0) {
            node_event(s, 0, terminal.revents & (POLLIN | POLLHUP | POLLERR), terminal.revents & POLLOUT, now);
        }
        if (swx_session_deadline(s) <= now) {
            swx_session_due(s, now);
        }
    }
    if (before > 0) {
        prctl(PR_SET_TIMERSLACK, (unsigned long)before, 0, 0, 0);
    }
}

/* False: it is gone, and the core has never had the request. */
static bool submit(request *f, int64_t direct)
{
    bool locked;
    f->op.typed = f->typed.data;
    f->op.typed_size = f->typed.size;
    Py_BEGIN_ALLOW_THREADS
    locked = lock(f->at);
    if (locked) {
        atomic_fetch_add(&f->base.references, 1); /* the core's, until it has completed */
        f->base.direct = direct > 0;
        if (direct > 0) {
            swx_node_pause(f->at->node, true);
        }
        swx_session_submit(f->at->session, &f->op, swx_now());
        if (direct > 0) {
            work_directly(f, direct, f->slack);
            f->base.direct = false;
            swx_node_pause(f->at->node, false);
        }
        unlock(f->at);
    }
    Py_END_ALLOW_THREADS
    return locked;
}

/* ---- Operation ---- */

static const char *const end_names[] = { "none", "done",   "matched",   "timeout", "quiet",  "died",
                                         "lost", "closed", "cancelled", "memory",  "costly", "system" };

/* False: it has not ended, and never will. */
static bool operation_cancel_now(operation_object *self)
{
    request *f = self->request;
    bool ended = atomic_load(&f->base.done);
    if (!ended) {
        Py_BEGIN_ALLOW_THREADS
        ended = lock(f->at);
        if (ended) {
            swx_session_cancel(f->at->session, &f->op);
            unlock(f->at);
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
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    operation_clear(object);
    if (self->request) {
        bool ended = operation_cancel_now(self), dies = atomic_load(&self->request->at->home->ended);
        if (self->matcher && (ended || !dies)) { /* else the reactor may still use it */
            swx_py_match_give_back(self->matcher);
            Py_DECREF(self->matcher);
        }
        swx_request_unref(&self->request->base);
    }
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static PyObject *operation_wait(PyObject *object, PyObject *seconds)
{
    operation_object *self = (operation_object *)object;
    int64_t deadline;
    if (swx_py_deadline(seconds, swx_now(), &deadline) < 0) {
        return NULL;
    }
    if (gone(self->request->at)) {
        return raise_gone(self->request->at);
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
    locked = lock(f->at);
    if (locked) {
        size = swx_session_take(f->at->session, &f->op, bytes, room, swx_now());
        unlock(f->at);
    }
    Py_END_ALLOW_THREADS
    PyObject *taken = locked ? PyBytes_FromStringAndSize((const char *)bytes, (Py_ssize_t)size) : raise_gone(f->at);
    swx_free(bytes);
    return taken;
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

static PyObject *operation_release(PyObject *object, PyObject *checked_arg);

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

static PyType_Spec operation_spec = {
    .name = "swerex_c._core.Operation",
    .basicsize = sizeof(operation_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = operation_slots,
};

/* ---- Session ---- */

/* Steals the request.  matcher, future and news may be None. */
static PyObject *launch(session_object *self, request *f, PyObject *matcher, PyObject *future, PyObject *news,
                        int64_t direct)
{
    swx_py_state *state = swx_py_state_of(Py_TYPE((PyObject *)self));
    allocfunc allocate = (allocfunc)PyType_GetSlot(state->operation_type, Py_tp_alloc);
    operation_object *op = (operation_object *)allocate(state->operation_type, 0);
    if (!op) {
        swx_request_unref(&f->base);
        return NULL;
    }
    op->request = f;
    if (matcher != Py_None) {
        f->op.match = swx_py_match_take(matcher);
        if (!f->op.match) {
            atomic_store(&f->base.done, true); /* nothing to cancel */
            Py_DECREF((PyObject *)op);
            return NULL;
        }
        op->matcher = Py_NewRef(matcher);
    }
    op->future = Py_NewRef(future);
    f->base.future = future == Py_None ? NULL : future;
    op->news = Py_NewRef(news);
    f->news.future = news == Py_None ? NULL : news;
    if (f->news.future) {
        f->op.stream = true;
        f->op.news = op_news;
    }
    if (!submit(f, direct)) {
        raise_gone(f->at);
        atomic_store(&f->base.done, true); /* nothing to cancel */
        Py_CLEAR(op);
    }
    return (PyObject *)op;
}

/* The bytes of a command: UTF-8, with lone surrogates from surrogateescape as the bytes they stand for.  A new
 * reference in *keep (or NULL) owns them. */
static const char *command_bytes(PyObject *command, Py_ssize_t *size, PyObject **keep)
{
    *keep = NULL;
    const char *bytes = PyUnicode_AsUTF8AndSize(command, size);
    if (bytes || !PyUnicode_Check(command)) {
        return bytes;
    }
    PyErr_Clear();
    char *data = NULL;
    *keep = PyUnicode_AsEncodedString(command, "utf-8", "surrogateescape");
    if (*keep && PyBytes_AsStringAndSize(*keep, &data, size) < 0) {
        Py_CLEAR(*keep);
    }
    return data;
}

static bool usable(const session_object *self)
{
    if (!self->at) {
        PyErr_SetString(PyExc_RuntimeError, "the session was not started");
        return false;
    }
    if (gone(self->at)) {
        raise_gone(self->at);
        return false;
    }
    return true;
}

static int set_limits(request *f, PyObject *timeout, PyObject *quiet)
{
    int64_t now = swx_now(), silent;
    if (swx_py_deadline(timeout, now, &f->op.deadline) < 0 || swx_py_deadline(quiet, now, &silent) < 0) {
        return -1;
    }
    f->op.quiet = silent == INT64_MAX ? 0 : silent - now;
    return 0;
}

/* Whether the text holds an assignment to PS1. */
static bool assigns_prompt(const char *text, size_t size)
{
    const char *end = text + size, *at = text;
    while ((at = memmem(at, (size_t)(end - at), "PS1=", 4))) {
        if (at == text || strchr(" \t\n;&|({'\"", at[-1])) {
            return true;
        }
        at += 4;
    }
    return false;
}

/* Whether a command that mentions exec holds a redirection of standard error, but for one to where standard output goes
 * anyway. */
static bool redirects_stderr(const char *text, size_t size)
{
    const char *end = text + size, *at = text;
    bool stdout_too = false;
    while ((at = memchr(at, '>', (size_t)(end - at)))) {
        bool both = at > text && at[-1] == '&', second = at > text && at[-1] == '2';
        bool copies = end - at > 2 && at[1] == '&' && at[2] == '1';
        if (both || (second && (!copies || stdout_too)) || (!second && end - at > 1 && at[1] == '&')) {
            return true;
        }
        stdout_too = stdout_too || !second;
        at++;
    }
    return false;
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* Whether the text holds a word that has the shell itself read or wait. */
static bool has_shell_wait(const char *text, size_t size)
{
    static const char *const words[] = { "read", "readarray", "mapfile", "select", "wait" };
    for (size_t i = 0; i < SWX_COUNT(words); i++) {
        size_t length = strlen(words[i]);
        const char *end = text + size, *at = text;
        while ((at = memmem(at, (size_t)(end - at), words[i], length))) {
            bool begins = at == text || !is_letter(at[-1]);
            at += length;
            if (begins && (at == end || !is_letter(*at))) {
                return true;
            }
        }
    }
    return false;
}

/* What the session has to know about a command before it runs. */
static unsigned hints_of(const swx_scan *scan, const char *text, size_t size, bool carrier)
{
    unsigned hints = ((scan->flags & SWX_SCAN_STTY) ? SWX_HINT_STTY : 0) |
                     ((scan->flags & SWX_SCAN_JOBS) ? SWX_HINT_JOBS : 0) |
                     ((scan->flags & SWX_SCAN_PROMPT) && assigns_prompt(text, size) ? SWX_HINT_PROMPT : 0);
    hints |= (scan->flags & SWX_SCAN_EXEC) && redirects_stderr(text, size) ? SWX_HINT_STDERR : 0;
    hints |= (scan->flags & SWX_SCAN_EXEC) && (hints & SWX_HINT_PROMPT) && memchr(text, '<', size) ? SWX_HINT_LAST : 0;
    hints |=
        (scan->flags & SWX_SCAN_EXEC ? SWX_HINT_EXEC : 0) | (scan->flags & SWX_SCAN_BACKGROUND ? SWX_HINT_STARTS : 0);
    bool hides = (scan->flags & SWX_SCAN_PROMPT) || (hints & SWX_HINT_STDERR);
    hints |= hides && !(scan->flags & SWX_SCAN_UNKNOWN) && !has_shell_wait(text, size) ? SWX_HINT_HIDES : 0;
    if (!carrier) {
        return hints | ((scan->flags & SWX_SCAN_EXEC) ? SWX_HINT_SETTLE : 0) |
               ((scan->flags & SWX_SCAN_PROMPT) ? SWX_HINT_SOURCE : 0);
    }
    const unsigned source = SWX_SCAN_PROMPT | SWX_SCAN_PARSE_STATE | SWX_SCAN_EXEC;
    return hints | ((scan->flags & SWX_SCAN_EXEC) && memmem(text, size, ">(", 2) ? SWX_HINT_SETTLE : 0) |
           ((scan->flags & source) ? SWX_HINT_SOURCE : 0) | ((scan->flags & SWX_SCAN_EDITING) ? SWX_HINT_EDITING : 0);
}

/* 1: what to type is in `typed`, and how, in `op`; 0: bash must be asked about the command first; -1: exception. */
static int deliver(swx_buf *typed, swx_op *op, bool *empty, const char *text, size_t size, int checked, place *at)
{
    swx_scan scan;
    swx_command_scan((const uint8_t *)text, size, &scan);
    if (scan.flags & SWX_SCAN_NUL) {
        PyErr_SetString(PyExc_ValueError, "a command cannot contain a NUL byte: no shell can be given one");
        return -1;
    }
    if (scan.verdict == SWX_UNSURE && checked < 0) {
        return 0;
    }
    unsigned spoils = swx_command_spoils(&scan, (const uint8_t *)text, size);
    op->hints = hints_of(&scan, text, size, at->carrier) | (spoils & SWX_SPOILS_BRACE ? SWX_HINT_BRACE : 0);
    swx_delivery way = swx_command_delivery(&scan, checked > 0);
    if (way == SWX_DELIVERY_RAW && at->carrier) { /* its terminal stays in canonical mode */
        bool group =
            (scan.flags & SWX_SCAN_MULTILINE) && !(scan.flags & SWX_SCAN_EDITING) && !(at->spoils & SWX_SPOILS_BRACE);
        way = group ? SWX_DELIVERY_TOGETHER : SWX_DELIVERY_EVAL;
    }
    way = swx_command_unspoilt(&scan, way, at->spoils);
    at->spoils |= spoils;
    swx_status status = way == SWX_DELIVERY_NONE ? swx_buf_append(typed, "\n", 1)
                                                 : swx_command_encode(way, (const uint8_t *)text, size, typed);
    if (status != SWX_OK) {
        swx_error err = { .status = status, .text = "the command is too long" };
        swx_py_raise(&err);
        return -1;
    }
    op->raw = way == SWX_DELIVERY_RAW;
    op->runs = way != SWX_DELIVERY_NONE;
    *empty = way == SWX_DELIVERY_NONE;
    return 1;
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
    const char *text = command_bytes(self->command, &size, &keep);
    swx_op wanted = { .kind = SWX_OP_RUN };
    int delivered = text ? deliver(&f->typed, &wanted, &f->empty, text, (size_t)size, checked > 0, f->at) : -1;
    Py_XDECREF(keep);
    if (delivered < 0) {
        return NULL;
    }
    Py_CLEAR(self->command);
    bool locked;
    Py_BEGIN_ALLOW_THREADS
    locked = lock(f->at);
    if (locked) {
        f->op.typed = f->typed.data;
        f->op.typed_size = f->typed.size;
        f->op.raw = wanted.raw;
        f->op.runs = wanted.runs;
        f->op.hints = wanted.hints;
        swx_session_release(f->at->session, &f->op, swx_now());
        unlock(f->at);
    }
    Py_END_ALLOW_THREADS
    return locked ? Py_NewRef(Py_None) : raise_gone(f->at);
}

static PyObject *session_run(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    session_object *self = (session_object *)object;
    swx_py_state *state = swx_py_state_of(Py_TYPE(object));
    PyObject *keep;
    Py_ssize_t size;
    if (count < 9 || count > 11) {
        PyErr_SetString(PyExc_TypeError, "run() takes command, checked, timeout, quiet, matcher, queue, future, news, "
                                         "direct and perhaps slack and grace");
        return NULL;
    }
    long checked = PyLong_AsLong(args[1]);
    long direct = PyLong_AsLong(args[8]);
    long slack = count > 9 && !PyErr_Occurred() ? PyLong_AsLong(args[9]) : 0;
    long grace = count == 11 && !PyErr_Occurred() ? PyLong_AsLong(args[10]) : 0;
    swx_queue *queue = swx_py_queue_get(state, args[5]);
    if (PyErr_Occurred() || !usable(self)) {
        return NULL;
    }
    const char *text = command_bytes(args[0], &size, &keep);
    if (!text) {
        return NULL;
    }
    request *f = request_new(self->at, SWX_OP_RUN, queue);
    int delivered = -1;
    if (f && set_limits(f, args[2], args[3]) == 0) {
        delivered = deliver(&f->typed, &f->op, &f->empty, text, (size_t)size, (int)checked, self->at);
    }
    Py_XDECREF(keep);
    if (delivered < 0) {
        if (f) {
            swx_request_unref(&f->base);
        }
        return NULL;
    }
    f->op.held = delivered == 0;
    f->op.grace = (int64_t)grace * 1000000;
    f->slack = (int64_t)slack * 1000;
    PyObject *op = launch(self, f, args[4], args[6], args[7], delivered ? (int64_t)direct * 1000 : 0);
    if (op && !delivered) {
        ((operation_object *)op)->command = Py_NewRef(args[0]);
    }
    return op;
}

/* start(), line() and interrupt() differ in kind and limits only. */
static PyObject *launch_text(session_object *self, swx_op_kind kind, PyObject *text, PyObject *timeout, PyObject *quiet,
                             PyObject *patience, PyObject *matcher, PyObject *queue_arg, PyObject *future,
                             PyObject *news, int64_t direct)
{
    swx_queue *queue = swx_py_queue_get(swx_py_state_of(Py_TYPE((PyObject *)self)), queue_arg);
    char *bytes;
    Py_ssize_t size;
    if (PyErr_Occurred() || !usable(self) || PyBytes_AsStringAndSize(text, &bytes, &size) < 0) {
        return NULL;
    }
    if (memchr(bytes, 0, (size_t)size)) {
        PyErr_SetString(PyExc_ValueError, "a terminal cannot be sent a NUL byte here");
        return NULL;
    }
    request *f = request_new(self->at, kind, queue);
    if (!f) {
        return NULL;
    }
    int64_t now = swx_now(), until;
    if (swx_py_deadline(patience, now, &until) < 0 || set_limits(f, timeout, quiet) < 0) {
        swx_request_unref(&f->base);
        return NULL;
    }
    if (kind == SWX_OP_START) { /* the clock starts when the shell is there */
        f->op.step = f->op.deadline == SWX_NEVER ? SWX_NEVER : f->op.deadline - swx_now();
        f->op.deadline = SWX_NEVER;
        f->op.patience = until == SWX_NEVER ? 0 : until - now + 1;
    }
    if (swx_buf_append(&f->typed, bytes, (size_t)size) != SWX_OK) {
        swx_request_unref(&f->base);
        return PyErr_NoMemory();
    }
    return launch(self, f, matcher, future, news, direct);
}

static PyObject *session_start(PyObject *object, PyObject *args)
{
    PyObject *script, *timeout, *queue, *future, *patience = Py_None;
    unsigned direct = 0;
    if (!PyArg_ParseTuple(args, "OOOO|OI:start", &script, &timeout, &queue, &future, &patience, &direct)) {
        return NULL;
    }
    return launch_text((session_object *)object, SWX_OP_START, script, timeout, Py_None, patience, Py_None, queue,
                       future, Py_None, (int64_t)direct * 1000);
}

static PyObject *session_line(PyObject *object, PyObject *args)
{
    PyObject *text, *timeout, *quiet, *matcher, *queue, *future, *news;
    if (!PyArg_ParseTuple(args, "OOOOOOO:line", &text, &timeout, &quiet, &matcher, &queue, &future, &news)) {
        return NULL;
    }
    return launch_text((session_object *)object, SWX_OP_LINE, text, timeout, quiet, Py_None, matcher, queue, future,
                       news, 0);
}

static PyObject *session_interrupt(PyObject *object, PyObject *args)
{
    session_object *self = (session_object *)object;
    PyObject *matcher, *queue_arg, *future;
    double step;
    unsigned tries;
    int silent = 0;
    if (!PyArg_ParseTuple(args, "dIOOO|p:interrupt", &step, &tries, &matcher, &queue_arg, &future, &silent)) {
        return NULL;
    }
    swx_queue *queue = swx_py_queue_get(swx_py_state_of(Py_TYPE(object)), queue_arg);
    if (PyErr_Occurred() || !usable(self)) {
        return NULL;
    }
    if (!(step >= 0 && step < 1e6)) {
        PyErr_SetString(PyExc_ValueError, "the timeout of an interrupt is a number of seconds that is not negative");
        return NULL;
    }
    request *f = request_new(self->at, SWX_OP_INTERRUPT, queue);
    if (!f) {
        return NULL;
    }
    f->op.step = (int64_t)(step * 1e9);
    f->op.tries = tries;
    f->op.silent = silent;
    return launch(self, f, matcher, future, Py_None, 0);
}

static PyObject *session_close(PyObject *object, PyObject *args)
{
    session_object *self = (session_object *)object;
    PyObject *queue_arg, *future;
    if (!PyArg_ParseTuple(args, "OO:close", &queue_arg, &future)) {
        return NULL;
    }
    swx_queue *queue = swx_py_queue_get(swx_py_state_of(Py_TYPE(object)), queue_arg);
    if (PyErr_Occurred() || !usable(self)) {
        return NULL;
    }
    request *f = request_new(self->at, SWX_OP_CLOSE, queue);
    return f ? launch(self, f, Py_None, future, Py_None, 0) : NULL;
}

static PyObject *session_type(PyObject *object, PyObject *bytes_object)
{
    session_object *self = (session_object *)object;
    char *bytes;
    Py_ssize_t size;
    bool locked;
    swx_status status = SWX_OK;
    if (!usable(self) || PyBytes_AsStringAndSize(bytes_object, &bytes, &size) < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    locked = lock(self->at);
    if (locked) {
        status = swx_session_type(self->at->session, (const uint8_t *)bytes, (size_t)size, swx_now());
        unlock(self->at);
    }
    Py_END_ALLOW_THREADS
    if (!locked) {
        return raise_gone(self->at);
    }
    if (status == SWX_ENOMEM) {
        return PyErr_NoMemory();
    }
    return PyBool_FromLong(status == SWX_OK);
}

static PyObject *session_resync(PyObject *object, PyObject *commands_object)
{
    session_object *self = (session_object *)object;
    unsigned long long commands = PyLong_AsUnsignedLongLong(commands_object);
    bool locked, asked = false;
    if (PyErr_Occurred() || !usable(self)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    locked = lock(self->at);
    if (locked) {
        asked = swx_session_resync(self->at->session, commands, swx_now());
        unlock(self->at);
    }
    Py_END_ALLOW_THREADS
    return locked ? PyBool_FromLong(asked) : raise_gone(self->at);
}

static PyObject *session_attach(PyObject *object, PyObject *attached)
{
    session_object *self = (session_object *)object;
    int on = PyObject_IsTrue(attached);
    bool locked;
    if (on < 0 || !usable(self)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    locked = lock(self->at);
    if (locked) {
        swx_session_attach(self->at->session, on);
        unlock(self->at);
    }
    Py_END_ALLOW_THREADS
    return locked ? Py_NewRef(Py_None) : raise_gone(self->at);
}

static PyObject *session_resize(PyObject *object, PyObject *args)
{
    session_object *self = (session_object *)object;
    unsigned rows, columns;
    swx_error err = { .status = SWX_OK };
    swx_status status = SWX_OK;
    bool locked;
    if (!PyArg_ParseTuple(args, "II:resize", &rows, &columns) || !usable(self)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    locked = lock(self->at);
    if (locked) {
        status = swx_session_resize(self->at->session, rows, columns, &err);
        unlock(self->at);
    }
    Py_END_ALLOW_THREADS
    if (!locked) {
        return raise_gone(self->at);
    }
    if (status != SWX_OK) {
        err.status = status;
        return swx_py_raise(&err);
    }
    Py_RETURN_NONE;
}

static PyObject *session_facts(PyObject *object, PyObject *unused)
{
    (void)unused;
    session_object *self = (session_object *)object;
    swx_session_state facts = { 0 };
    int pid = 0;
    bool locked;
    if (!usable(self)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    locked = lock(self->at);
    if (locked) {
        facts = swx_session_look(self->at->session);
        pid = (int)swx_session_pid(self->at->session);
        unlock(self->at);
    }
    Py_END_ALLOW_THREADS
    if (!locked) {
        return raise_gone(self->at);
    }
    return Py_BuildValue("{sOsOsOsOsOsOsisLsKsKsKsi}", "kernel_proof", facts.kernel_proof ? Py_True : Py_False, "idle",
                         facts.idle ? Py_True : Py_False, "dead", facts.dead ? Py_True : Py_False, "closed",
                         facts.closed ? Py_True : Py_False, "doubtful", facts.doubtful ? Py_True : Py_False, "hides",
                         facts.hides ? Py_True : Py_False, "wait_status", facts.wait_status, "commenced",
                         (long long)facts.commenced, "commands", (unsigned long long)facts.commands, "questions",
                         (unsigned long long)facts.questions, "late", (unsigned long long)facts.late, "pid", pid);
}

static swx_status start(place *at, const swx_session_config *config, swx_error *err)
{
    swx_status status = swx_session_new(&at->session, config, swx_now(), err);
    if (status == SWX_OK) {
        status = swx_reactor_add(at->home->reactor, &at->node, &session_node, at->session, err);
        if (status != SWX_OK) {
            swx_session_free(at->session);
        } else {
            swx_node_lock(at->node);
            swx_session_set_unwatch(at->session, unwatch, at->node);
            swx_node_unlock(at->node);
        }
    }
    return status;
}

static PyObject *session_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = { "shell", "environment", "directory", "rows", "columns", "output_limit", "argv", NULL };
    PyObject *environment, *directory_arg, *argv_arg = Py_None;
    const char *shell, *directory;
    unsigned rows, columns;
    Py_ssize_t limit;
    swx_error err = { .status = SWX_ENOMEM };
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "yOOIIn|O:Session", names, &shell, &environment, &directory_arg,
                                     &rows, &columns, &limit, &argv_arg) ||
        swx_py_path(directory_arg, &directory) < 0) {
        return NULL;
    }
    if (limit < 2) {
        PyErr_SetString(PyExc_ValueError, "output_limit is a number of bytes, at least 2");
        return NULL;
    }
    swx_py_home *home = swx_py_home_of(swx_py_state_of(type));
    if (!home) {
        return NULL;
    }
    swx_py_home_ref(home); /* sequences are Python code, which may end it */
    char **strings = swx_py_strings(environment);
    char **argv = strings && argv_arg != Py_None ? swx_py_strings(argv_arg) : NULL;
    if (argv && !argv[0]) {
        PyErr_SetString(PyExc_ValueError, "argv is the program that carries the terminal, and its arguments");
    }
    if (!strings || PyErr_Occurred()) {
        swx_free(argv);
        swx_free(strings);
        swx_py_home_unref(home);
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    session_object *self = (session_object *)allocate(type, 0);
    place *at = swx_calloc(1, sizeof(*at));
    swx_session_config config = { .shell = shell,
                                  .environment = strings,
                                  .directory = directory,
                                  .rows = rows,
                                  .columns = columns,
                                  .output_limit = (size_t)limit,
                                  .argv = argv,
                                  .program_mark = home->program_mark };
    swx_status status = SWX_ENOMEM;
    bool entered = true;
    if (self && at) {
        atomic_init(&at->references, 1);
        at->home = home;
        at->carrier = argv != NULL;
        Py_BEGIN_ALLOW_THREADS
        entered = swx_py_home_enter(home);
        if (entered) {
            status = start(at, &config, &err);
            swx_py_home_leave(home);
        }
        Py_END_ALLOW_THREADS
    }
    swx_free(argv);
    swx_free(strings);
    if (status != SWX_OK) {
        entered ? swx_py_raise(&err) : swx_py_raise_gone(home, "session");
        swx_py_home_unref(home);
        swx_free(at);
        Py_XDECREF((PyObject *)self);
        return NULL;
    }
    self->at = at;
    return (PyObject *)self;
}

static void session_dealloc(PyObject *object)
{
    session_object *self = (session_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->at) {
        place_unref(self->at);
    }
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static PyMethodDef session_methods[] = {
    { "start", session_start, METH_VARARGS,
      "start($self, script, timeout, queue, future, patience=None, direct=0, /)\n--\n\nRuns the startup script (bytes, "
      "whole lines).  Call it once, first.\n\n"
      "timeout: seconds for the script, from the shell's first prompt on; None: no limit.\npatience: seconds for a "
      "carrier to show "
      "that prompt; None: as many.\ndirect: as for run(); for a shell that is at its prompt already." },
    { "run", (PyCFunction)(void (*)(void))session_run, METH_FASTCALL,
      "run($self, command, checked, timeout, quiet, matcher, queue, future, news, direct, slack=0, grace=0, "
      "/)\n--\n\nRuns a command.\n\n"
      "checked: 1, `bash -n` accepts it without a warning; 0, with a warning; -1, nobody asked: then the operation is "
      "`held` "
      "when bash has to be asked.\ntimeout, quiet: seconds or None.  news: what Completions.take returns when there is "
      "output.\n"
      "direct: microseconds that this call itself waits for the end, without the GIL.\nslack: microseconds more that "
      "it may take to "
      "give up waiting, which makes the wait cheaper.\ngrace: milliseconds for it to end after a match, so that it has "
      "an exit code." },
    { "line", session_line, METH_VARARGS,
      "line($self, text, timeout, quiet, matcher, queue, future, news, /)\n--\n\nTypes bytes, as they are, to whatever "
      "reads the "
      "terminal; ends with a match or when the shell is back." },
    { "interrupt", session_interrupt, METH_VARARGS,
      "interrupt($self, step, tries, matcher, queue, future, silent=False, /)\n--\n\nSends SIGINT up to `tries` times, "
      "`step` seconds apart, then "
      "kills what is in the foreground (behind a carrier it ends as `timeout` instead).  Overtakes what "
      "waits.\nsilent: the caller sends the "
      "signal to what runs behind the carrier; this ends when that does, or when it is cancelled." },
    { "close", session_close, METH_VARARGS,
      "close($self, queue, future, /)\n--\n\nEnds the shell and everything it started." },
    { "type", session_type, METH_O,
      "type($self, data, /)\n--\n\nTypes raw bytes to what runs in the session, at once.  False: nothing runs, nothing "
      "was typed." },
    { "resync", session_resync, METH_O,
      "resync($self, commands, /)\n--\n\nThe shell behind the carrier was seen at its prompt, after facts() had said "
      "`doubtful` and so many "
      "commands: if no end was heard since, it is asked.  False: there is no doubt." },
    { "attach", session_attach, METH_O,
      "attach($self, attached, /)\n--\n\nWhether a person's terminal is attached, which answers queries and from which "
      "lines may be "
      "typed ahead." },
    { "resize", session_resize, METH_VARARGS, "resize($self, rows, columns, /)\n--\n\nSets the size of the screen." },
    { "facts", session_facts, METH_NOARGS, "facts($self, /)\n--\n\nA dict of what is known about the session now." },
    { NULL, NULL, 0, NULL },
};

static PyType_Slot session_slots[] = {
    { Py_tp_doc,
      "Session(shell, environment, directory, rows, columns, output_limit, argv=None)\n--\n\nA bash on a terminal of "
      "its "
      "own.\n\nshell: path (bytes); environment: sequence of b\"K=V\"; directory: bytes or None.\nargv: list of bytes, "
      "a program that "
      "carries the terminal of a bash elsewhere (see swx_session.h); None: shell itself runs here.\nOSError names "
      "the call that failed.  Throwing the object away ends the shell and all it started." },
    { Py_tp_new, session_new },
    { Py_tp_dealloc, session_dealloc },
    { Py_tp_methods, session_methods },
    { 0, NULL },
};

static PyType_Spec session_spec = {
    .name = "swerex_c._core.Session",
    .basicsize = sizeof(session_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = session_slots,
};

int swx_py_session_init(PyObject *module, swx_py_state *state)
{
    state->operation_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &operation_spec, NULL);
    if (!state->operation_type || PyModule_AddType(module, state->operation_type) < 0) {
        return -1;
    }
    state->session_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &session_spec, NULL);
    return state->session_type ? PyModule_AddType(module, state->session_type) : -1;
}
