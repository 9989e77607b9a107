/* A request to a session on its way: the session's node, and what both objects do with it. */
#include "py_session.h"

#include <errno.h>
#include <poll.h>

#include "swx_command.h"

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
        swx_session_writable(s);
    }
}

static int64_t node_deadline(const void *object) { return swx_session_deadline(object); }
static void node_due(void *object, int64_t now) { swx_session_due(object, now); }

static swx_interest node_interest(const void *object, unsigned which)
{
    const swx_session *s = object;
    if (which == 0) {
        return (swx_interest){ swx_session_terminal(s), swx_session_wants_read(s), swx_session_wants_write(s) };
    }
    return (swx_interest){ .fd = which == 1 ? swx_session_pidfd(s) : -1, .read = true };
}

static void node_destroy(void *object) { swx_session_free(object); }
static bool node_slow(const void *object) { return swx_session_is_slow(object); }
static swx_child *node_child(void *object) { return swx_session_doomed(object); }

const swx_node_type swx_py_session_node = { .event = node_event,
                                            .deadline = node_deadline,
                                            .due = node_due,
                                            .interest = node_interest,
                                            .destroy = node_destroy,
                                            .slow = node_slow,
                                            .child = node_child };

/* ---- handles ---- */

void swx_py_session_unref(session_handle *handle)
{
    if (atomic_fetch_sub(&handle->references, 1) == 1) {
        if (swx_py_engine_enter(handle->engine)) {
            swx_reactor_remove(handle->node);
            swx_py_engine_leave(handle->engine);
        }
        swx_py_engine_unref(handle->engine);
        free(handle);
    }
}

PyThreadState *swx_py_session_enter(const session_handle *handle)
{
    PyThreadState *thread = swx_py_lock(handle->engine, handle->node);
    if (!thread) {
        swx_py_raise_gone(handle->engine, "session");
    }
    return thread;
}

void swx_py_session_leave(const session_handle *handle, PyThreadState *thread)
{
    swx_py_unlock(handle->engine, handle->node, thread);
}

/* ---- requests ---- */

static void request_destroy(swx_request *base)
{
    request *req = (request *)base;
    swx_buf_free(&req->op.output);
    swx_buf_free(&req->op.heard);
    swx_buf_free(&req->op.unsearched);
    swx_buf_free(&req->typed);
    swx_py_session_unref(req->handle);
    free(req);
}

static void news_destroy(swx_request *news)
{
    request *req = (request *)((char *)news - offsetof(request, news));
    atomic_store(&req->news_queued, false);
    swx_request_unref(&req->base);
}

static void op_done(swx_op *op) { swx_request_completed(&((request *)op->owner)->base); }

void swx_py_request_tell_news(swx_op *op)
{
    request *req = op->owner;
    if (req->base.queue && !req->base.waits_inline && !atomic_exchange(&req->news_queued, true)) {
        atomic_store(&req->news.references, 1);
        atomic_fetch_add(&req->base.references, 1);
        swx_queue_ref(req->base.queue); /* given back when the reference above is */
        req->news.queue = req->base.queue;
        if (!swx_queue_push(req->base.queue, &req->news.link)) {
            swx_request_unref(&req->news);
        }
    }
}

request *swx_py_request_new(session_object *session, swx_op_kind kind, PyObject *queue_arg)
{
    session_handle *handle = session->handle;
    swx_queue *queue = swx_py_queue_get(swx_py_state_of(Py_TYPE((PyObject *)session)), queue_arg);
    request *req = PyErr_Occurred() ? NULL : calloc(1, sizeof(*req));
    if (!req) {
        return PyErr_Occurred() ? NULL : (request *)PyErr_NoMemory();
    }
    swx_request_init(&req->base, request_destroy, 1, queue);
    req->news.destroy = news_destroy;
    req->op = (swx_op){ .kind = kind, .deadline = SWX_NEVER, .done = op_done, .owner = req };
    swx_buf_init(&req->typed, DELIVERY_LIMIT);
    swx_buf_init(&req->op.output, 2);
    req->handle = handle;
    atomic_fetch_add(&handle->references, 1);
    return req;
}

/* Does the reactor's work for this session in the calling thread, for up to `limit` nanoseconds and until there is
 * something to read from req->wake_fd: a short command ends without any other thread being woken.  Node locked, no GIL.
 * The shell's end is looked at too, because the reactor's thread would wait for the lock when it learned of that. */
static void wait_inline(request *req, int64_t limit)
{
    swx_session *s = req->handle->session;
    int64_t until = swx_now() + limit;
    while (!atomic_load(&req->base.done)) {
        int64_t now = swx_now(), due = swx_session_deadline(s);
        if (now >= until) {
            break;
        }
        due = due < until ? due : until;
        struct pollfd fds[] = { { .fd = swx_session_terminal(s), .events = swx_session_wants_read(s) ? POLLIN : 0 },
                                { .fd = req->wake_fd, .events = POLLIN },
                                { .fd = swx_session_pidfd(s), .events = POLLIN } };
        if (swx_session_wants_write(s)) {
            fds[0].events |= POLLOUT;
        }
        int64_t left = due > now ? due - now : 0;
        struct timespec wait = { .tv_sec = left / 1000000000, .tv_nsec = left % 1000000000 };
        int count = ppoll(fds, SWX_COUNT(fds), &wait, NULL);
        now = swx_now();
        if (count < 0 && errno != EINTR) {
            break;
        }
        if (count > 0 && fds[0].revents) {
            node_event(s, 0, fds[0].revents & (POLLIN | POLLHUP | POLLERR), fds[0].revents & POLLOUT, now);
        }
        if (count > 0 && fds[2].revents) {
            node_event(s, 1, true, false, now);
        }
        if (swx_session_deadline(s) <= now) {
            swx_session_due(s, now);
        }
        if (count > 0 && fds[1].revents) {
            break;
        }
    }
}

bool swx_py_request_submit(request *req, int64_t inline_wait)
{
    req->op.typed = req->typed.data;
    req->op.typed_size = req->typed.size;
    PyThreadState *thread = swx_py_session_enter(req->handle);
    if (!thread) {
        return false;
    }
    atomic_fetch_add(&req->base.references, 1); /* the core's, until it has completed */
    req->base.waits_inline = inline_wait > 0;
    if (inline_wait > 0) {
        swx_node_pause(req->handle->node, true);
    }
    swx_session_submit(req->handle->session, &req->op, swx_now());
    if (inline_wait > 0) {
        wait_inline(req, inline_wait);
        req->base.waits_inline = false;
        swx_node_pause(req->handle->node, false);
    }
    swx_py_session_leave(req->handle, thread);
    return true;
}

/* ---- commands ---- */

static int encode(request *req, const uint8_t *text, size_t size, int checked)
{
    session_handle *handle = req->handle;
    swx_scan scan;
    swx_command_scan(text, size, &scan);
    if (scan.flags & SWX_SCAN_NUL) {
        PyErr_SetString(PyExc_ValueError, "it contains a NUL byte, which no shell can be given");
        return -1;
    }
    if (scan.verdict == SWX_UNSURE && checked < 0) {
        return 0;
    }
    unsigned spoils = swx_command_spoils(&scan, text, size);
    req->op.hints =
        swx_command_hints(&scan, text, size, handle->elsewhere) | (spoils & SWX_SPOILS_BRACE ? SWX_HINT_BRACE : 0);
    swx_delivery way = swx_command_delivery(&scan, checked > 0, handle->spoils, handle->elsewhere);
    handle->spoils |= spoils;
    req->empty = way == SWX_DELIVERY_NONE;
    swx_status status =
        req->empty ? swx_buf_append(&req->typed, "\n", 1) : swx_command_encode(way, text, size, &req->typed);
    if (status != SWX_OK) {
        swx_py_raise(&(swx_error){ .status = status, .text = "the command is too long" });
        return -1;
    }
    req->op.raw = way == SWX_DELIVERY_RAW;
    req->op.runs = !req->empty;
    return 1;
}

int swx_py_request_encode(request *req, PyObject *command, int checked)
{
    Py_ssize_t size;
    PyObject *keep;
    const char *text = swx_py_command_bytes(command, &size, &keep);
    int encoded = text ? encode(req, (const uint8_t *)text, (size_t)size, checked) : -1;
    Py_XDECREF(keep);
    return encoded;
}
