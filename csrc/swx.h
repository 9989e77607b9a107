/* swx.h: shared by all modules of the core: status codes, the error record, small helpers.
 *
 * The core (swx_*) is plain C11 for Linux and never includes the headers of Python.  Functions return a swx_status;
 * "need more input" is a status of its own and not an error.  Names that cross files start with swx_,
 * all others are static.  Nothing here has mutable static state.
 *
 * Sizes are bytes, times are nanoseconds of CLOCK_MONOTONIC unless a name says otherwise.
 */
#ifndef SWX_H
#define SWX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

typedef enum {
    SWX_OK = 0,
    SWX_MORE,         /* more input is needed; not an error */
    SWX_ENOMEM,       /* an allocation failed; the object is unchanged or sticky, as its header says */
    SWX_EINVAL,       /* the caller's input cannot be accepted; the text says why */
    SWX_ELIMIT,       /* a documented limit would be exceeded */
    SWX_ESYS,         /* a system call failed: see swx_error.call and .sys_errno */
    SWX_EFORMAT,      /* bytes from a peer do not follow the format */
    SWX_EUNSUPPORTED, /* valid input that this module does not handle (a caller may fall back) */
    SWX_ECLOSED,      /* the object was closed */
    SWX_EBUSY         /* the object cannot take this operation now */
} swx_status;

/* An error, with all that a message needs.  `call` and `text` point to static strings. */
typedef struct {
    swx_status status;
    int sys_errno;    /* errno of `call`, 0 when no system call was involved */
    const char *call; /* name of the system call that failed, or NULL */
    const char *text; /* one clear sentence, or NULL */
    size_t position;  /* byte offset in the input at fault, 0 when it has no meaning */
} swx_error;

/* Fills *err (which may be NULL) and returns status, so that a function can `return swx_fail(...)`. */
static inline swx_status swx_fail(swx_error *err, swx_status status, const char *text)
{
    if (err) {
        *err = (swx_error){ .status = status, .text = text };
    }
    return status;
}

static inline swx_status swx_fail_sys(swx_error *err, const char *call, int sys_errno)
{
    if (err) {
        *err = (swx_error){ .status = SWX_ESYS, .sys_errno = sys_errno, .call = call };
    }
    return SWX_ESYS;
}

/* CLOCK_MONOTONIC, nanoseconds. */
static inline int64_t swx_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Closes a descriptor unless it is -1, and sets it to -1. */
static inline void swx_close(int *fd)
{
    if (*fd >= 0) {
        close(*fd);
    }
    *fd = -1;
}

#define SWX_COUNT(array) (sizeof(array) / sizeof((array)[0]))

#endif
