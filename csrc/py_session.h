/* py_session.h: what the files of the session's binding share: py_request.c, py_operation.c, py_session.c. */
#ifndef SWX_PY_SESSION_H
#define SWX_PY_SESSION_H

#include <stdatomic.h>

#include "py_core.h"
#include "swx_session.h"

/* A session in the reactor.  Shared by the Session object and by every operation under way. */
typedef struct {
    atomic_int references;
    swx_py_engine *engine;
    swx_node *node;
    swx_session *session;
    bool elsewhere;  /* see swx_session.h */
    unsigned spoils; /* of swx_spoils, by the texts so far */
} session_handle;

typedef struct {
    swx_request base; /* first */
    swx_request news; /* tells of output while it runs; its references are 1 while it is queued */
    atomic_bool news_queued;
    swx_op op;
    bool empty; /* a command of blanks and comments: its exit code is 0, whatever `$?` is */
    swx_buf typed;
    int wake_fd; /* ends the caller's own wait when there is something to read; -1: nothing does */
    session_handle *handle;
} request;

typedef struct {
    PyObject_HEAD
    request *request;
    PyObject *matcher, *future, *news;
    PyObject *command; /* while it is held; else NULL */
} operation_object;

typedef struct {
    PyObject_HEAD
    session_handle *handle;
} session_object;

extern const swx_node_type swx_py_session_node;

void swx_py_session_unref(session_handle *handle);

/* As swx_py_lock and swx_py_unlock.  NULL with an exception set: the session is gone. */
PyThreadState *swx_py_session_enter(const session_handle *handle);
void swx_py_session_leave(const session_handle *handle, PyThreadState *thread);

void swx_py_request_tell_news(swx_op *op);

/* queue: a Completions, or None.  NULL with an exception set. */
request *swx_py_request_new(session_object *session, swx_op_kind kind, PyObject *queue);

/* For up to `inline_wait` nanoseconds the calling thread waits itself.  False with an exception set: the session is
 * gone, and the core has never had the request. */
bool swx_py_request_submit(request *req, int64_t inline_wait);

/* Encodes a command (a str or bytes) that has not begun.  checked: as Session.run has it.  1: the request knows what to
 * type; 0: bash must be asked first; -1: exception. */
int swx_py_request_encode(request *req, PyObject *command, int checked);

#endif
