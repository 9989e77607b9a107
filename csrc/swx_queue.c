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
    swx_wake *first, **last; /* under the lock */
    bool closed;
};

swx_status swx_queue_new(swx_queue **out, swx_error *err)
{
    swx_queue *w = calloc(1, sizeof(*w));
    *out = NULL;
    if (!w) {
        return swx_fail(err, SWX_ENOMEM, "out of memory");
    }
    w->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->fd < 0) {
        int failed = errno;
        free(w);
        return swx_fail_sys(err, "eventfd", failed);
    }
    atomic_init(&w->references, 1);
    pthread_mutex_init(&w->lock, NULL);
    w->last = &w->first;
    *out = w;
    return SWX_OK;
}

void swx_queue_ref(swx_queue *w) { atomic_fetch_add(&w->references, 1); }

void swx_queue_unref(swx_queue *w)
{
    if (w && atomic_fetch_sub(&w->references, 1) == 1) {
        close(w->fd);
        pthread_mutex_destroy(&w->lock);
        free(w);
    }
}

int swx_queue_fd(const swx_queue *w) { return w->fd; }

bool swx_queue_push(swx_queue *w, swx_wake *item)
{
    item->next = NULL;
    pthread_mutex_lock(&w->lock);
    bool open = !w->closed, was_empty = !w->first;
    if (open) {
        *w->last = item;
        w->last = &item->next;
    }
    if (open && was_empty) { /* inside of the lock, so that a take never leaves a stale wake-up behind */
        const uint64_t one = 1;
        ssize_t ignored = write(w->fd, &one, sizeof(one));
        (void)ignored; /* it can only be full, and then it is readable */
    }
    pthread_mutex_unlock(&w->lock);
    return open;
}

static swx_wake *take(swx_queue *w, bool close)
{
    uint64_t count;
    pthread_mutex_lock(&w->lock);
    w->closed = w->closed || close;
    swx_wake *items = w->first;
    w->first = NULL;
    w->last = &w->first;
    if (items) {
        ssize_t ignored = read(w->fd, &count, sizeof(count));
        (void)ignored;
    }
    pthread_mutex_unlock(&w->lock);
    return items;
}

swx_wake *swx_queue_take(swx_queue *w) { return take(w, false); }
swx_wake *swx_queue_close(swx_queue *w) { return take(w, true); }
