#include "swx_reactor.h"
#include "swx_tree.h"

#include <errno.h>
#include <linux/time_types.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { EVENTS_AT_ONCE = 128, FIRST_HEAP = 64 };
static const int64_t AWAKE = INT64_MIN; /* wakes_at of a thread that will look at the heap before it sleeps */

struct swx_node {
    swx_reactor *reactor;
    const swx_node_type *type;
    void *object; /* NULL: it was given back to the caller, and the node is removed */
    pthread_mutex_t lock;
    bool paused;
    struct {
        int fd;
        uint32_t events; /* as epoll has them */
    } watched[SWX_NODE_FDS];
    atomic_bool removed; /* set under the reactor's lock */
    /* under the reactor's lock */
    int64_t due;
    size_t heap_index; /* until it is removed */
    swx_node *next;    /* in the graveyard */
    swx_node *after;   /* in the worker's queue */
    bool buried;       /* the worker is to destroy it */
    /* under both locks */
    bool working; /* the worker is to call due, and the node is not watched until it has */
};

struct swx_reactor {
    unsigned forks; /* as many as there were when it was made */
    int epoll, wake;
    pthread_mutex_t lock;
    pthread_t thread;
    pthread_t worker;    /* does what takes long */
    bool worker_started; /* it is to be joined: known to the thread, then to swx_reactor_free */
    /* under the lock */
    bool started, stop;
    bool working; /* the worker will look at its queue again */
    int64_t wakes_at;
    swx_node **heap; /* the nodes in use, by due, smallest first */
    size_t count, heap_room;
    swx_node *graveyard;         /* removed, not yet unwatched */
    swx_node *queue, *queue_end; /* for the worker */
};

/* ---- the heap of deadlines (reactor locked) ---- */

static void set_slot(swx_reactor *r, size_t index, swx_node *node)
{
    r->heap[index] = node;
    node->heap_index = index;
}

static void sift_up(swx_reactor *r, size_t index)
{
    swx_node *node = r->heap[index];
    while (index && r->heap[(index - 1) / 2]->due > node->due) {
        set_slot(r, index, r->heap[(index - 1) / 2]);
        index = (index - 1) / 2;
    }
    set_slot(r, index, node);
}

static void sift_down(swx_reactor *r, size_t index)
{
    swx_node *node = r->heap[index];
    for (;;) {
        size_t child = 2 * index + 1;
        if (child >= r->count) {
            break;
        }
        if (child + 1 < r->count && r->heap[child + 1]->due < r->heap[child]->due) {
            child++;
        }
        if (r->heap[child]->due >= node->due) {
            break;
        }
        set_slot(r, index, r->heap[child]);
        index = child;
    }
    set_slot(r, index, node);
}

static void heap_set(swx_reactor *r, swx_node *node, int64_t due)
{
    node->due = due;
    sift_up(r, node->heap_index);
    sift_down(r, node->heap_index);
}

static void heap_remove(swx_reactor *r, const swx_node *node)
{
    swx_node *last = r->heap[--r->count];
    if (last != node) {
        set_slot(r, node->heap_index, last);
        heap_set(r, last, last->due);
    }
}

static bool heap_reserve(swx_reactor *r)
{
    if (r->count < r->heap_room) {
        return true;
    }
    size_t room = r->heap_room ? r->heap_room * 2 : FIRST_HEAP;
    swx_node **heap = realloc(r->heap, room * sizeof(swx_node *));
    if (!heap) {
        return false;
    }
    r->heap = heap;
    r->heap_room = room;
    return true;
}

/* ---- interest ---- */

static void wake_thread(const swx_reactor *r) { eventfd_write(r->wake, 1); }

/* Watches what the object is interested in.  The node is locked, and the object has unwatched the descriptors that it
 * has closed.  A removed node stays unwatched, so that no event names it when it is destroyed.  Returns the errno of a
 * descriptor that cannot be watched, or 0. */
static int watch(swx_node *node)
{
    int failed = 0;
    for (unsigned i = 0; !atomic_load(&node->removed) && !node->working && i < SWX_NODE_FDS; i++) {
        const swx_interest wanted = node->type->interest(node->object, i);
        const int fd = wanted.fd;
        uint32_t events = node->paused && i == 0 ? 0 : (wanted.read ? EPOLLIN : 0u) | (wanted.write ? EPOLLOUT : 0u);
        /* epoll reports a hang-up even if no event is asked for: then once is enough. */
        struct epoll_event event = { .events = events ? events : EPOLLONESHOT, .data.u64 = (uintptr_t)node | i };
        if (fd != node->watched[i].fd) {
            node->watched[i].fd = -1;
            node->watched[i].events = 0;
            if (fd >= 0 && epoll_ctl(node->reactor->epoll, EPOLL_CTL_ADD, fd, &event) == 0) {
                node->watched[i].fd = fd;
                node->watched[i].events = events;
            } else if (fd >= 0) {
                failed = errno;
            }
        } else if (fd >= 0 && events != node->watched[i].events &&
                   epoll_ctl(node->reactor->epoll, EPOLL_CTL_MOD, fd, &event) == 0) {
            node->watched[i].events = events;
        }
    }
    return failed;
}

static void reschedule(swx_node *node)
{
    swx_reactor *r = node->reactor;
    /* else it would stay due for ever */
    bool idle = node->paused || node->working || atomic_load(&node->removed);
    int64_t due = idle ? INT64_MAX : node->type->deadline(node->object);
    pthread_mutex_lock(&r->lock);
    if (!atomic_load(&node->removed)) {
        heap_set(r, node, due);
    }
    bool sooner = due < r->wakes_at;
    pthread_mutex_unlock(&r->lock);
    if (sooner && due != INT64_MAX) {
        wake_thread(r);
    }
}

void swx_node_lock(swx_node *node) { pthread_mutex_lock(&node->lock); }

void swx_node_unlock(swx_node *node)
{
    watch(node);
    reschedule(node);
    pthread_mutex_unlock(&node->lock);
}

void swx_node_unwatch(swx_node *node, int fd)
{
    for (unsigned i = 0; i < SWX_NODE_FDS; i++) {
        if (fd >= 0 && node->watched[i].fd == fd) {
            epoll_ctl(node->reactor->epoll, EPOLL_CTL_DEL, fd, NULL);
            node->watched[i].fd = -1;
            node->watched[i].events = 0;
        }
    }
}

void swx_node_pause(swx_node *node, bool paused)
{
    node->paused = paused;
    if (paused) { /* unlock will look again */
        watch(node);
    }
}

static void unwatch_all(swx_node *node)
{
    for (unsigned i = 0; i < SWX_NODE_FDS; i++) {
        swx_node_unwatch(node, node->watched[i].fd);
    }
}

static bool is_due(const swx_node *node, int64_t now)
{
    return !node->paused && !atomic_load(&node->removed) && node->type->deadline(node->object) <= now;
}

/* ---- the thread ---- */

static void handle(swx_reactor *r, const struct epoll_event *event, int64_t now)
{
    if (!event->data.u64) {
        eventfd_t count;
        eventfd_read(r->wake, &count);
        return;
    }
    swx_node *node = (swx_node *)(uintptr_t)(event->data.u64 & ~UINT64_C(3));
    unsigned which = (unsigned)(event->data.u64 & 3);
    pthread_mutex_lock(&node->lock);
    swx_interest wanted = { .fd = -1 };
    if (!node->paused && !atomic_load(&node->removed)) {
        wanted = node->type->interest(node->object, which);
    }
    bool read = wanted.read && (event->events & (EPOLLIN | EPOLLHUP | EPOLLERR));
    bool write = wanted.write && (event->events & (EPOLLOUT | EPOLLERR));
    if (wanted.fd >= 0 && wanted.fd == node->watched[which].fd && (read || write)) {
        node->type->event(node->object, which, read, write, now);
    }
    swx_node_unlock(node);
}

static swx_child *child_of(const swx_node *node)
{
    return node->object && node->type->child ? node->type->child(node->object) : NULL;
}

static void destroy(swx_node *node)
{
    if (node->object) {
        node->type->destroy(node->object);
    }
    pthread_mutex_destroy(&node->lock);
    free(node);
}

/* The application's signals are for its own threads. */
static int create_thread(pthread_t *thread, void *(*function)(void *), const char *name, swx_reactor *r)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(thread, NULL, function, r);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed) {
        pthread_setname_np(*thread, name);
    }
    return failed;
}

static void work_on(swx_node *node)
{
    swx_reactor *r = node->reactor;
    pthread_mutex_lock(&node->lock); /* a thread that removed it inside of a call on it has left that */
    int64_t now = swx_now();
    if (is_due(node, now)) {
        node->type->due(node->object, now);
    }
    pthread_mutex_lock(&r->lock);
    bool buried = node->buried;
    node->working = false;
    pthread_mutex_unlock(&r->lock);
    if (buried) {
        pthread_mutex_unlock(&node->lock);
        destroy(node);
    } else {
        swx_node_unlock(node);
    }
}

static void destroy_together(swx_node *const *nodes, size_t count)
{
    swx_child *children[SWX_CHILDREN_AT_ONCE];
    size_t child_count = 0;
    for (size_t i = 0; i < count; i++) {
        pthread_mutex_lock(&nodes[i]->lock); /* a thread that removed it inside of a call on it has left that */
        children[child_count] = child_of(nodes[i]);
        child_count += children[child_count] != NULL;
        pthread_mutex_unlock(&nodes[i]->lock);
    }
    swx_tree_end_all(children, child_count);
    for (size_t i = 0; i < count; i++) {
        destroy(nodes[i]);
    }
}

/* The next in the queue, or several that are to be destroyed. */
static size_t take_from_queue(swx_reactor *r, swx_node **nodes, bool *buried)
{
    size_t count = 0;
    pthread_mutex_lock(&r->lock);
    *buried = r->queue && r->queue->buried;
    while (r->queue && (count == 0 || (*buried && r->queue->buried && count < SWX_CHILDREN_AT_ONCE))) {
        nodes[count++] = r->queue;
        r->queue = r->queue->after;
    }
    r->working = count > 0;
    pthread_mutex_unlock(&r->lock);
    return count;
}

/* Ends when its queue is empty. */
static void *run_worker(void *argument)
{
    swx_node *nodes[SWX_CHILDREN_AT_ONCE];
    size_t count;
    bool buried;
    while ((count = take_from_queue(argument, nodes, &buried))) {
        if (buried) {
            destroy_together(nodes, count);
        } else {
            work_on(nodes[0]);
        }
    }
    return NULL;
}

static void join_worker(swx_reactor *r)
{
    if (r->worker_started) {
        pthread_join(r->worker, NULL);
    }
    r->worker_started = false;
}

/* Gives a node that is no longer watched to the worker.  In the reactor's thread only.  False: no thread could be
 * started. */
static bool hand_to_worker(swx_reactor *r, swx_node *node, bool bury)
{
    pthread_mutex_lock(&r->lock);
    if (!atomic_load(&node->removed)) {
        heap_set(r, node, INT64_MAX); /* another thread may have set its deadline meanwhile */
    }
    node->buried = bury;
    node->working = !bury;
    node->after = NULL;
    *(r->queue ? &r->queue_end->after : &r->queue) = node;
    r->queue_end = node;
    bool working = r->working;
    r->working = true;
    pthread_mutex_unlock(&r->lock);
    if (working) {
        return true;
    }
    join_worker(r); /* it has ended, or is about to */
    r->worker_started = create_thread(&r->worker, run_worker, "swx-worker", r) == 0;
    if (!r->worker_started) { /* no other thread looks at the queue */
        r->queue = NULL;
        r->working = node->working = false;
    }
    return r->worker_started;
}

/* The worker has it already, and destroys it after that. */
static bool bury_with_worker(swx_reactor *r, swx_node *node)
{
    pthread_mutex_lock(&r->lock);
    bool working = node->buried = node->working;
    pthread_mutex_unlock(&r->lock);
    return working;
}

/* Nodes are destroyed between two rounds only, so that no event of a round names a destroyed one; no later round can,
 * because they are unwatched here. */
static void bury(swx_reactor *r)
{
    pthread_mutex_lock(&r->lock);
    swx_node *node = r->graveyard;
    r->graveyard = NULL;
    pthread_mutex_unlock(&r->lock);
    while (node) {
        swx_node *next = node->next;
        if (!bury_with_worker(r, node)) {
            pthread_mutex_lock(&node->lock); /* a thread that removed it inside of a call on it has left that */
            unwatch_all(node);
            pthread_mutex_unlock(&node->lock);
            if (!child_of(node) || !hand_to_worker(r, node, true)) {
                destroy(node);
            }
        }
        node = next;
    }
}

static void run_due(swx_reactor *r, int64_t now)
{
    for (;;) {
        pthread_mutex_lock(&r->lock);
        swx_node *node = r->count && r->heap[0]->due <= now ? r->heap[0] : NULL;
        if (node) {
            heap_set(r, node, INT64_MAX);
        }
        pthread_mutex_unlock(&r->lock);
        if (!node) {
            return;
        }
        pthread_mutex_lock(&node->lock); /* it lives: only this thread buries */
        bool due = is_due(node, now);    /* and was not moved meanwhile */
        if (due && node->type->slow && node->type->slow(node->object)) {
            unwatch_all(node);
            if (hand_to_worker(r, node, false)) {
                pthread_mutex_unlock(&node->lock);
                continue;
            }
        }
        if (due) {
            node->type->due(node->object, now);
        }
        swx_node_unlock(node);
    }
}

static int wait_for_events(swx_reactor *r, struct epoll_event *events, int64_t until)
{
    int64_t left = until == INT64_MAX ? -1 : until - swx_now();
    left = until == INT64_MAX ? -1 : left < 0 ? 0 : left;
#ifdef SYS_epoll_pwait2 /* glibc has a function for it from 2.35 on, which would bind the program to that version */
    struct __kernel_timespec wait = { .tv_sec = left / 1000000000, .tv_nsec = left % 1000000000 };
    long count = syscall(SYS_epoll_pwait2, r->epoll, events, EVENTS_AT_ONCE, left < 0 ? NULL : &wait, NULL, 0);
    if (count >= 0 || errno == EINTR) { /* ENOSYS, but also EPERM in containers that do not know the call */
        return (int)count;
    }
#endif
    int64_t milliseconds = left < 0 ? -1 : (left + 999999) / 1000000;
    return epoll_wait(r->epoll, events, EVENTS_AT_ONCE, milliseconds > 3600000 ? 3600000 : (int)milliseconds);
}

static void *run(void *argument)
{
    swx_reactor *r = argument;
    struct epoll_event events[EVENTS_AT_ONCE];
    for (;;) {
        bury(r);
        pthread_mutex_lock(&r->lock);
        bool stop = r->stop;
        int64_t until = r->count ? r->heap[0]->due : INT64_MAX;
        until = r->graveyard ? 0 : until;
        r->wakes_at = until;
        pthread_mutex_unlock(&r->lock);
        if (stop) {
            return NULL;
        }
        int count = wait_for_events(r, events, until);
        pthread_mutex_lock(&r->lock);
        r->wakes_at = AWAKE;
        pthread_mutex_unlock(&r->lock);
        int64_t now = swx_now();
        for (int i = 0; i < count; i++) {
            handle(r, &events[i], now);
        }
        run_due(r, swx_now());
    }
}

/* ---- forks: how many lie between the first process with a reactor and this one, without a system call ---- */

static pthread_once_t forks_once = PTHREAD_ONCE_INIT;
static atomic_uint forks;
static bool forks_seen; /* written once, before there is a reactor */

static void count_fork(void) { atomic_fetch_add(&forks, 1); }
static void watch_forks(void) { forks_seen = pthread_atfork(NULL, NULL, count_fork) == 0; }

/* ---- nodes and the reactor itself ---- */

swx_status swx_reactor_new(swx_reactor **out, swx_error *err)
{
    *out = NULL;
    pthread_once(&forks_once, watch_forks);
    swx_reactor *r = forks_seen ? calloc(1, sizeof(*r)) : NULL;
    if (!r) {
        return swx_fail(err, SWX_ENOMEM, "out of memory");
    }
    r->forks = atomic_load(&forks);
    r->wakes_at = AWAKE;
    pthread_mutex_init(&r->lock, NULL);
    struct epoll_event event = { .events = EPOLLIN, .data.u64 = 0 };
    r->epoll = epoll_create1(EPOLL_CLOEXEC);
    r->wake = r->epoll < 0 ? -1 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    const char *failed = r->epoll < 0                                               ? "epoll_create1"
                         : r->wake < 0                                              ? "eventfd"
                         : epoll_ctl(r->epoll, EPOLL_CTL_ADD, r->wake, &event) != 0 ? "epoll_ctl"
                                                                                    : NULL;
    if (failed) {
        swx_fail_sys(err, failed, errno);
        swx_reactor_free(r);
        return SWX_ESYS;
    }
    *out = r;
    return SWX_OK;
}

static void close_descriptors(swx_reactor *r)
{
    swx_close(&r->wake);
    swx_close(&r->epoll);
}

void swx_reactor_free(swx_reactor *r)
{
    if (!r) {
        return;
    }
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    bool started = r->started;
    pthread_mutex_unlock(&r->lock);
    if (started) {
        wake_thread(r);
        pthread_join(r->thread, NULL);
        join_worker(r);
    }
    while (r->count) {
        swx_reactor_remove(r->heap[0]);
    }
    bury(r);
    join_worker(r);
    close_descriptors(r);
    pthread_mutex_destroy(&r->lock);
    free(r->heap);
    free(r);
}

void swx_reactor_abandon(swx_reactor *r) { close_descriptors(r); }

bool swx_reactor_is_forked(const swx_reactor *r) { return r->forks != atomic_load(&forks); }

swx_status swx_reactor_add(swx_reactor *r, swx_node **out, const swx_node_type *type, void *object, swx_error *err)
{
    swx_node *node = calloc(1, sizeof(*node));
    *out = NULL;
    if (!node) {
        return swx_fail(err, SWX_ENOMEM, "out of memory");
    }
    *node = (swx_node){ .reactor = r, .type = type, .object = object, .due = INT64_MAX };
    for (unsigned i = 0; i < SWX_NODE_FDS; i++) {
        node->watched[i].fd = -1;
    }
    pthread_mutex_init(&node->lock, NULL);
    pthread_mutex_lock(&r->lock);
    swx_status status = heap_reserve(r) ? SWX_OK : swx_fail(err, SWX_ENOMEM, "out of memory");
    if (status == SWX_OK && !r->started) {
        int failed = create_thread(&r->thread, run, "swx-reactor", r);
        r->started = !failed;
        status = failed ? swx_fail_sys(err, "pthread_create", failed) : SWX_OK;
    }
    if (status == SWX_OK) {
        set_slot(r, r->count++, node);
    }
    pthread_mutex_unlock(&r->lock);
    if (status != SWX_OK) {
        pthread_mutex_destroy(&node->lock);
        free(node);
        return status;
    }
    swx_node_lock(node);
    int failed = watch(node);
    if (failed) { /* the object stays the caller's */
        unwatch_all(node);
        node->object = NULL;
        swx_reactor_remove(node);
        swx_node_unlock(node);
        return swx_fail_sys(err, "epoll_ctl", failed);
    }
    *out = node;
    return SWX_OK;
}

/* Takes no node's lock: a call on a node may end with the last reference to another one, or to that same one. */
void swx_reactor_remove(swx_node *node)
{
    swx_reactor *r = node->reactor;
    pthread_mutex_lock(&r->lock);
    if (atomic_exchange(&node->removed, true)) { /* the thread and the owner may come to the same end at once */
        pthread_mutex_unlock(&r->lock);
        return;
    }
    heap_remove(r, node);
    node->next = r->graveyard;
    r->graveyard = node;
    wake_thread(r); /* locked: afterwards the reactor may be freed */
    pthread_mutex_unlock(&r->lock);
}

size_t swx_reactor_count(swx_reactor *r)
{
    pthread_mutex_lock(&r->lock);
    size_t count = r->count;
    pthread_mutex_unlock(&r->lock);
    return count;
}
