/* swx_waker.h: a queue of ended things for one waiting thread or event loop, and a descriptor that tells of it.
 *
 * Any thread pushes; the owner watches swx_waker_fd for readability and takes everything at once.  Only the push into
 * an empty queue writes to the descriptor, so a burst of completions costs one wake-up.
 * Reference-counted, because an operation may outlive the loop that asked for it.  The lock of a waker is the innermost
 * one: nothing is called with it held.
 */
#ifndef SWX_WAKER_H
#define SWX_WAKER_H

#include "swx.h"

typedef struct swx_waker swx_waker;

/* A link in the queue, part of the thing itself. */
typedef struct swx_wake {
    struct swx_wake *next;
} swx_wake;

/* One reference.  SWX_ENOMEM, SWX_ESYS (eventfd). */
swx_status swx_waker_new(swx_waker **out, swx_error *err);
void swx_waker_ref(swx_waker *waker);
void swx_waker_unref(swx_waker *waker); /* NULL is legal */

int swx_waker_fd(const swx_waker *waker);

/* False when the waker is closed: the item stays the caller's. */
bool swx_waker_push(swx_waker *waker, swx_wake *item);

/* Nobody will take any more: returns what is queued and refuses what comes. */
swx_wake *swx_waker_close(swx_waker *waker);

/* All items, oldest first; resets the descriptor. */
swx_wake *swx_waker_take(swx_waker *waker);

#endif
