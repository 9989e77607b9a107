/* py_core.h: what the files of the binding share: module state, objects, errors, and how a buffer becomes a str.
 *
 * Ownership of a running operation:
 *
 *     Operation (Python) --ref--> request (C) <--ref-- session, until done; then the queue, until taken
 *
 * The reactor's thread touches requests only, never a Python object and never the GIL.
 *
 * What the objects are to Python is told in swerex_c/_core.pyi alone: a docstring is a signature.
 */
#ifndef SWX_PY_CORE_H
#define SWX_PY_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdlib.h>

#include "swx_buf.h"
#include "swx_match.h"
#include "swx_reactor.h"
#include "swx_queue.h"

/* The reactor, as sessions and processes refer to it, because their objects may outlive it: at the interpreter's exit,
 * and in a child after fork(). */
typedef struct {
    _Atomic int references;
    _Atomic bool ended; /* set with the GIL held: the reactor is freed, and with it every node, when */
    _Atomic int inside; /* no call uses them any more */
    swx_reactor *reactor;
    uint64_t program_mark; /* mark of all that sessions and processes start; see swx_supervisor.h */
} swx_py_engine;

void swx_py_engine_ref(swx_py_engine *engine);
void swx_py_engine_unref(swx_py_engine *engine);

/* Between these two the reactor and its nodes stay, with the GIL or without.  False: it is gone, and there is
 * nothing to leave. */
bool swx_py_engine_enter(swx_py_engine *engine);
void swx_py_engine_leave(swx_py_engine *engine);

/* Calls `start` in between, without the GIL.  what: names it in errors.  0, or -1 with an exception set. */
int swx_py_begin(swx_py_engine *engine, const char *what, swx_status (*start)(void *, const void *, swx_error *),
                 void *started, const void *config);

/* The same with a node's lock, without the GIL in between.  NULL: the reactor is gone.  (In a forked child the lock may
 * be held by a thread that is not there.) */
PyThreadState *swx_py_lock(swx_py_engine *engine, swx_node *node);
void swx_py_unlock(swx_py_engine *engine, swx_node *node, PyThreadState *thread);

/* Raises a RuntimeError that says why the reactor is gone, and returns NULL. */
PyObject *swx_py_raise_gone(const swx_py_engine *engine, const char *what);

/* The types of the module, each with the file that has it. */
enum {
    SWX_PY_COMPLETIONS, /* py_queue.c */
    SWX_PY_OPERATION,   /* py_operation.c */
    SWX_PY_SESSION,     /* py_session.c */
    SWX_PY_PROCESS,     /* py_process.c */
    SWX_PY_MATCHER,     /* py_match.c */
    SWX_PY_STRIP,       /* py_strip.c */
    SWX_PY_ENCODER,     /* py_frame_encoder.c */
    SWX_PY_DECODER,     /* py_frame_decoder.c */
    SWX_PY_TYPES
};

extern PyType_Spec swx_py_completions_spec, swx_py_operation_spec, swx_py_session_spec, swx_py_process_spec,
    swx_py_matcher_spec, swx_py_strip_spec, swx_py_encoder_spec, swx_py_decoder_spec;

/* The PyType_Spec of a type: its name, the struct of an instance, further flags, and its slots. */
#define SWX_PY_SLOTS(...) ((PyType_Slot[]){ __VA_ARGS__, { 0, NULL } })
#define SWX_PY_SPEC(type_name, instance, more_flags, ...)                                                         \
    {                                                                                                             \
        .name = "swerex_c._core." type_name, .basicsize = sizeof(instance),                                       \
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | (more_flags), .slots = SWX_PY_SLOTS(__VA_ARGS__) \
    }

/* An attribute that a getter tells by a number, one of its own. */
#define SWX_PY_FACT(name, getter, which)                    \
    {                                                       \
        name, getter, NULL, NULL, (void *)(intptr_t)(which) \
    }

/* Functions of the module, in py_process.c and py_command.c. */
PyObject *swx_py_kill_marked(PyObject *module, PyObject *marks);
PyObject *swx_py_living_marks(PyObject *module, PyObject *marks);
PyObject *swx_py_scan(PyObject *module, PyObject *command);
PyObject *swx_py_quote(PyObject *module, PyObject *command);

typedef struct {
    swx_py_engine *engine; /* NULL before the first session */
    PyTypeObject *types[SWX_PY_TYPES];
    PyObject *frame_error;
    PyObject *model_names[4]; /* of the attributes that a pydantic model consists of */
} swx_py_state;

/* State of the module that a type of ours belongs to. */
swx_py_state *swx_py_state_of(PyTypeObject *type);

/* The engine of this process's reactor, borrowed; a forked child gets its own.  NULL with an exception set. */
swx_py_engine *swx_py_engine_of(swx_py_state *state);

/* Sets the Python exception for a failure: OSError naming the call, MemoryError, or ValueError with the text.
 * Returns NULL. */
PyObject *swx_py_raise(const swx_error *err);

/* Program output as a str: without control sequences, with invalid UTF-8 as \xNN, and with a line for dropped bytes.
 * crlf: also turn CR LF into LF. */
PyObject *swx_py_text(const swx_buf *buf, bool crlf);

/* Program output as bytes, with the same line. */
PyObject *swx_py_bytes(const swx_buf *buf);

/* A number of seconds, or None for "no limit", as a point in time from now (INT64_MAX).  -1: exception set. */
int swx_py_deadline(PyObject *seconds, int64_t now, int64_t *deadline);

/* For O& in formats: a bytes object without NUL as a string (const char *), borrowed from it; None as NULL. */
int swx_py_path(PyObject *object, void *path);

/* A NULL-terminated list of strings, those of a sequence of bytes objects, which another thread may change meanwhile;
 * owned by the caller (swx_py_strings_free; NULL is legal).  NULL with an exception set. */
char **swx_py_strings(PyObject *sequence);
void swx_py_strings_free(char **strings);

/* The bytes of a command: those of a bytes object, or UTF-8, with lone surrogates from surrogateescape as the bytes
 * they stand for.  A new reference in *keep (or NULL) owns them.  NULL with an exception set. */
const char *swx_py_command_bytes(PyObject *command, Py_ssize_t *size, PyObject **keep);

/* A Completions's queue, borrowed; NULL when the object is None; with an exception set (TypeError) when it is something
 * else. */
swx_queue *swx_py_queue_get(swx_py_state *state, PyObject *object);

/* What a loop waits for: an operation or a process.  Reference-counted by hand, because two threads hold it. */
typedef struct swx_request swx_request;
struct swx_request {
    swx_queue_link link; /* first */
    void (*destroy)(swx_request *);
    swx_queue *queue; /* a reference, or NULL */
    PyObject *future; /* what Completions.take returns for it; touched with the GIL only; owned by the Python object */
    _Atomic int references;
    _Atomic bool done;
    bool waits_inline; /* the submitting thread still waits by itself: no wake-up; under the node's lock */
};
/* Initialises a request of zeros.  queue may be NULL. */
void swx_request_init(swx_request *request, void (*destroy)(swx_request *), int references, swx_queue *queue);
void swx_request_unref(swx_request *request);

/* Called by the core when it is done, without the GIL: hands the core's reference to the queue, or drops it. */
void swx_request_completed(swx_request *request);

/* Takes the swx_match out of a Matcher, for use without the GIL by one stream.  It is not reset.  NULL with TypeError
 * when object is no Matcher, or RuntimeError when it is in use.  The caller keeps a reference to the object until it
 * calls swx_py_match_give_back; in between Python calls on the object raise RuntimeError. */
swx_match *swx_py_match_take(const swx_py_state *state, PyObject *object);

/* Ends the use.  Needs no GIL, only a reference. */
void swx_py_match_give_back(PyObject *object);

/* The end of a tp_dealloc: frees the instance, and drops its reference to its type. */
static inline void swx_py_deallocate(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

#endif
