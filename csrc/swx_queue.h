/* swx_queue.h: a queue of completed requests for one thread or event loop, with an eventfd.
 *
 * Any thread pushes; the owner watches swx_queue_fd for readability and takes everything at once.  Only the push into
 * an empty queue writes to the descriptor, so a burst of completions costs one wake-up.
 * Reference-counted, because an operation may outlive the loop that asked for it.  Its lock is the innermost one.
 */
#ifndef SWX_QUEUE_H
#define SWX_QUEUE_H

#include "swx.h"

typedef struct swx_queue swx_queue;

/* A link in the queue, part of the request. */
typedef struct swx_queue_link {
    struct swx_queue_link *next;
} swx_queue_link;

/* One reference.  SWX_ENOMEM, SWX_ESYS (eventfd). */
swx_status swx_queue_new(swx_queue **out, swx_error *err);
void swx_queue_ref(swx_queue *queue);
void swx_queue_unref(swx_queue *queue); /* NULL is legal */

int swx_queue_fd(const swx_queue *queue);

/* False when the queue is closed: the item stays the caller's. */
bool swx_queue_push(swx_queue *queue, swx_queue_link *item);

/* Closes the queue: returns what is queued, and refuses later items. */
swx_queue_link *swx_queue_close(swx_queue *queue);

/* All items, oldest first; resets the descriptor. */
swx_queue_link *swx_queue_take(swx_queue *queue);

#endif
