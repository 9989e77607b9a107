#include "swx_queue.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct swx_queue {
    atomic_int references;
    int fd;
    pthread_mutex_t lock;
    swx_queue_link *first, **last; /* under the lock */
    bool closed;
};

swx_status swx_queue_new(swx_queue **out, swx_error *err)
{
    swx_queue *queue = calloc(1, sizeof(*queue));
    *out = NULL;
    if (!queue) {
        return swx_fail(err, SWX_ENOMEM, "out of memory");
    }
    queue->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (queue->fd < 0) {
        int failed = errno;
        free(queue);
        return swx_fail_sys(err, "eventfd", failed);
    }
    atomic_init(&queue->references, 1);
    pthread_mutex_init(&queue->lock, NULL);
    queue->last = &queue->first;
    *out = queue;
    return SWX_OK;
}

void swx_queue_ref(swx_queue *queue) { atomic_fetch_add(&queue->references, 1); }

void swx_queue_unref(swx_queue *queue)
{
    if (queue && atomic_fetch_sub(&queue->references, 1) == 1) {
        close(queue->fd);
        pthread_mutex_destroy(&queue->lock);
        free(queue);
    }
}

int swx_queue_fd(const swx_queue *queue) { return queue->fd; }

bool swx_queue_push(swx_queue *queue, swx_queue_link *item)
{
    item->next = NULL;
    pthread_mutex_lock(&queue->lock);
    bool open = !queue->closed, was_empty = !queue->first;
    if (open) {
        *queue->last = item;
        queue->last = &item->next;
    }
    if (open && was_empty) {
        /* Inside of the lock, so that a take never leaves a stale wake-up behind; it can only be full, and readable. */
        eventfd_write(queue->fd, 1);
    }
    pthread_mutex_unlock(&queue->lock);
    return open;
}

static swx_queue_link *take(swx_queue *queue, bool close)
{
    eventfd_t count;
    pthread_mutex_lock(&queue->lock);
    queue->closed = queue->closed || close;
    swx_queue_link *items = queue->first;
    queue->first = NULL;
    queue->last = &queue->first;
    if (items) {
        eventfd_read(queue->fd, &count);
    }
    pthread_mutex_unlock(&queue->lock);
    return items;
}

swx_queue_link *swx_queue_take(swx_queue *queue) { return take(queue, false); }
swx_queue_link *swx_queue_close(swx_queue *queue) { return take(queue, true); }
