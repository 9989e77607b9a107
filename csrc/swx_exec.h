/* swx_exec.h: one program with pipes, run to its end, as a state machine for the reactor.
 *
 * It ends when the program itself has ended and what it had written until then is read: a grandchild that keeps the
 * pipes open does not hold it up.  (The object goes on reading and dropping what such a grandchild writes, so that it
 * does not die of SIGPIPE, until that closes the pipes or the object is freed.)  At the deadline the program and
 * everything it started is killed, whatever session or group that is in by then, and the output so far is kept.
 * stdin is at end-of-file unless input is given.  Calls must not overlap; `done` must not call back.
 */
#ifndef SWX_EXEC_H
#define SWX_EXEC_H

#include "swx_buf.h"
#include "swx_child.h"

typedef struct swx_exec swx_exec;

typedef struct {
    const char *file; /* as in swx_spawn; borrowed during new, like all below */
    char *const *argv;
    char *const *environment; /* NULL: the caller's own */
    const char *directory;    /* NULL: the caller's */
    const uint8_t *input;     /* what stdin gives; size 0: end-of-file at once */
    size_t input_size;
    bool merge;                           /* stderr goes into stdout, in the order of writing */
    int64_t deadline;                     /* INT64_MAX: none */
    size_t output_limit;                  /* bytes kept per stream */
    uint64_t program_mark;                /* as in swx_spawn */
    void (*done)(swx_exec *);             /* once */
    void (*unwatch)(void *owner, int fd); /* called right before a watched descriptor is closed; may be NULL */
    void *owner;
} swx_exec_config;

/* Starts the program.  SWX_ESYS with call "execve" (or "chdir") and its errno when it cannot be executed (ENOENT,
 * EACCES). */
swx_status swx_exec_new(swx_exec **out, const swx_exec_config *config, swx_error *err);

/* Closes and frees; kills everything it started that still lives when it has not ended.  NULL is legal. */
void swx_exec_free(swx_exec *exec);

/* Whether swx_exec_due would look at all processes now; and the child whose tree swx_exec_free ends, or NULL. */
bool swx_exec_is_slow(const swx_exec *exec);
swx_child *swx_exec_doomed(swx_exec *exec);

/* Ends it now, as at the deadline. */
void swx_exec_cancel(swx_exec *exec, int64_t now);

/* Descriptors: 0 and 1 readable (stdout, stderr), 2 readable (end of the program); -1 when closed. */
int swx_exec_fd(const swx_exec *exec, unsigned which);
void swx_exec_event(swx_exec *exec, unsigned which);
int64_t swx_exec_deadline(const swx_exec *exec);
void swx_exec_due(swx_exec *exec, int64_t now);

/* Tells that the owner no longer needs it.  It is finished once it has ended and its last descriptor is closed. */
void swx_exec_release(swx_exec *exec);
bool swx_exec_is_finished(const swx_exec *exec);
void *swx_exec_owner(const swx_exec *exec);

/* The mark of everything that it starts, for swx_tree_kill_marked; valid after its end.  0: none. */
uint64_t swx_exec_mark(const swx_exec *exec);

typedef struct {
    bool timed_out, cancelled, no_memory;
    int wait_status; /* of waitpid(2), or SWX_STATUS_LOST */
    swx_buf output, error;
} swx_exec_result;

/* Moves the result to the caller, who frees its buffers.  Once, after done. */
swx_exec_result swx_exec_take_result(swx_exec *exec);

#endif
